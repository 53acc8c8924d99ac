"""Bad arguments: what verifiers refuse, in which words, and that they do before they compute anything.

test_bad_launches.py has what the kernels make of values that they do not check.
"""

import dataclasses
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch

from specbench.core import arguments
from specbench.core.errors import ArgumentError
from specbench.core.mask import Mask
from specbench.core.rng import Streams
from specbench.core.types import Draft, LogitRows, Verification
from specbench.kernels import launch
from specbench.rules.block.masked import BlockVerifier
from specbench.rules.fused import FusedVerifier
from specbench.rules.matching import MatchingVerifier
from specbench.rules.token.masked import MaskedVerifier
from specbench.rules.token.naive import NaiveVerifier
from tests.helpers.kernel_cases import DEVICE, Case, T, changed, on_a_gpu, step, to_meta

Step = tuple[Draft, LogitRows, Streams]
CHECKING = {
    "naive": NaiveVerifier(),
    "masked": MaskedVerifier(),
    "block": BlockVerifier(),
    "sample_match": MatchingVerifier(coupled=False),
    "fused, debug": FusedVerifier(debug=True),
    "block_fused, debug": FusedVerifier(block=True, debug=True),
}
UNCHECKED = {"fused": FusedVerifier(debug=False), "block_fused": FusedVerifier(block=True, debug=False)}
SOUND = Case([2, 3, 0, 2], 7, "seven drafted tokens, 11 rows of the target")


def spoils(part: str, **changes: Callable) -> Callable[[Draft, LogitRows, Streams], Step]:
    """A function that changes fields of the draft, its rows, the target or the streams by functions of these."""

    def spoil(draft: Draft, target: LogitRows, streams: Streams) -> Step:
        parts = {"draft": draft, "rows": draft.rows, "target": target, "streams": streams}
        instance = parts[part]
        parts[part] = changed(instance, **{name: change(getattr(instance, name)) for name, change in changes.items()})
        return changed(parts["draft"], rows=parts["rows"]), parts["target"], parts["streams"]

    return spoil


def entry(index: int, value: int) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda tensor: tensor.index_fill(0, torch.tensor([index], device=tensor.device), value)


def entries(*values: int) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda tensor: tensor.new_tensor(values)


@dataclass(frozen=True)
class Refused:
    """How to spoil a sound step, and what the error must say."""

    name: str
    spoil: Callable[[Draft, LogitRows, Streams], Step]
    match: str


def mask(sets: int) -> Mask:
    """That allows everything."""
    words = torch.zeros((sets, 1), dtype=torch.int32, device=DEVICE)
    return Mask(torch.zeros(sets, dtype=torch.bool, device=DEVICE), words, 1)


ON_META = "on meta, but target.logits is on (cpu|cuda)"
SEEN_BY_THE_HOST = [
    Refused("ids int32", spoils("draft", token_ids=torch.Tensor.int), r"^draft\.token_ids: torch.int32 \(7,\); int64"),
    Refused("counts int32", spoils("draft", num_draft_tokens=torch.Tensor.int), r"^draft\.num_draft_tokens: .*int32"),
    Refused("seeds int32", spoils("streams", seeds=torch.Tensor.int), r"^streams\.seeds: torch.int32"),
    Refused("positions int32", spoils("streams", positions=torch.Tensor.int), r"^streams\.positions: torch.int32"),
    Refused("ids in a matrix", spoils("draft", token_ids=lambda x: x[None]), r"^draft\.token_ids: .* \(1, 7\); int64"),
    Refused(
        "temperatures of requests",
        spoils("target", temperature=lambda x: x[:4]),
        r"^target\.temperature: .* \(4,\); floats \(11,\) needed, one for each row",
    ),
    Refused("cutoffs of requests", spoils("target", cutoff=lambda x: x[:4]), r"^target\.cutoff: .* \(4,\); floats"),
    Refused("normalisers short", spoils("rows", log_normalizer=lambda x: x[:4]), r"^draft\.rows\.log_normalizer: .*4"),
    Refused("temperatures of q", spoils("rows", temperature=lambda x: x[:4]), r"^draft\.rows\.temperature: .*\(7,\)"),
    Refused("integer temperatures", spoils("target", temperature=torch.Tensor.long), r"^target\.temperature: .*int64"),
    Refused("mask of 3 rows", spoils("target", allowed=lambda _: mask(3)), r"^target\.allowed\.restricted: .*11 rows"),
    Refused(
        "a mask of floats",
        spoils("target", allowed=lambda _: changed(mask(11), bits=torch.zeros(11, 1, device=DEVICE))),
        r"^target\.allowed\.bits: torch\.float32",
    ),
    Refused("logits of 3 dims", spoils("target", logits=lambda x: x.new_zeros(4, 4, 7)), r"^target\.logits: .*4, 4, 7"),
    Refused("q of requests", spoils("rows", logits=lambda x: x.new_zeros(4, 3, 7)), r"^draft\.rows\.logits: .*4, 3, 7"),
    Refused("integer logits", spoils("target", logits=torch.Tensor.long), r"^target\.logits: torch.int64; floats"),
    Refused("no vocabulary", spoils("target", logits=lambda x: x[:, :0]), r"^target\.logits: shape \(11, 0\)"),
    Refused("another vocabulary", spoils("rows", logits=lambda x: x[:, :6]), r"^draft\.rows: .* \(7, 6\); \(7, 7\)"),
    Refused(
        "a row of the target too few",
        lambda draft, target, streams: (draft, target.select(torch.arange(10, device=DEVICE)), streams),
        r"^target: 10 rows; 7 draft tokens of 4 requests need 11",
    ),
    Refused("few seeds", spoils("streams", seeds=lambda x: x[:3]), r"^streams\.seeds: 3 for a draft of 4 requests"),
    Refused("positions too many", spoils("streams", positions=lambda x: x.repeat(2)), r"^streams\.positions: 8 for a"),
    Refused("too narrow", spoils("streams", width=lambda _: 3), r"^streams\.width: 3; max_draft_tokens=3 needs 4"),
    Refused("a bound below 0", spoils("draft", max_draft_tokens=lambda _: -1), r"^draft\.max_draft_tokens: -1; 0 or"),
    Refused(
        "more tokens than the bound allows",
        spoils("draft", max_draft_tokens=lambda _: 1),
        r"^draft\.token_ids: 7 tokens; 4 requests draft 4 at most, by max_draft_tokens=1",
    ),
    Refused("ids elsewhere", spoils("draft", token_ids=to_meta), rf"^draft\.token_ids: {ON_META}"),
    Refused("counts elsewhere", spoils("draft", num_draft_tokens=to_meta), rf"^draft\.num_draft_tokens: {ON_META}"),
    Refused("q elsewhere", spoils("rows", logits=to_meta), rf"^draft\.rows\.logits: {ON_META}"),
    Refused("q's cutoffs elsewhere", spoils("rows", cutoff=to_meta), rf"^draft\.rows\.cutoff: {ON_META}"),
    Refused("temperatures elsewhere", spoils("target", temperature=to_meta), rf"^target\.temperature: {ON_META}"),
    Refused("seeds elsewhere", spoils("streams", seeds=to_meta), rf"^streams\.seeds: {ON_META}"),
    Refused("positions elsewhere", spoils("streams", positions=to_meta), rf"^streams\.positions: {ON_META}"),
]
IDS, COUNTS = (
    r"^draft\.token_ids\[{}\] = {} is outside 0 to 6$",
    r"^draft\.num_draft_tokens\[{}\] = {} is outside 0 to 3$",
)
VALUES = [
    Refused("id -1", spoils("draft", token_ids=entry(3, -1)), IDS.format(3, -1)),
    Refused("id V", spoils("draft", token_ids=entry(6, 7)), IDS.format(6, 7)),
    Refused("id 2^32", spoils("draft", token_ids=entry(0, 2**32)), IDS.format(0, 2**32)),
    Refused("two ids", spoils("draft", token_ids=lambda x: entry(5, -9)(entry(2, 8)(x))), IDS.format(2, 8)),
    Refused("a count above the bound", spoils("draft", num_draft_tokens=entry(1, 4)), COUNTS.format(1, 4)),
    Refused("a count below 0", spoils("draft", num_draft_tokens=entry(2, -1)), COUNTS.format(2, -1)),
    Refused("counts that add up", spoils("draft", num_draft_tokens=entries(3, 9, -3, -2)), COUNTS.format(1, 9)),
    Refused("a sum that wraps", spoils("draft", num_draft_tokens=entries(2**62, 2**62, 2**62, 2**62 + 7)), "num_draft"),
    Refused(
        "counts of too many tokens",
        spoils("draft", num_draft_tokens=entries(3, 3, 0, 2)),
        r"^draft\.num_draft_tokens: 8 in all, but draft\.token_ids holds 7 tokens",
    ),
    Refused("counts of too few", spoils("draft", num_draft_tokens=entries(2, 3, 0, 1)), r"num_draft_tokens: 6 in all"),
    Refused("place -1", spoils("streams", positions=entry(2, -1)), r"^streams\.positions\[2\] = -1 is outside 0 to 4"),
    Refused("position 2^32", spoils("streams", positions=entry(0, 2**32)), r"\[0\] = 4294967296 .* 0 to 4294967295$"),
    Refused("seed -1", spoils("streams", seeds=entry(3, -1)), r"^streams\.seeds\[3\] = -1 is outside 0 to 92233720"),
]


def forbid_to_compute(monkeypatch: pytest.MonkeyPatch) -> None:
    """What verifiers begin with then fails: an index from a bad count can end the process."""

    def fail(*_: object, **__: object) -> None:
        raise AssertionError("computed from what was not checked")

    derived = {LogitRows: ("normalizer", "probs", "prob"), Draft: ("first_row", "request_of_row")}
    for kind, names in derived.items():
        for name in names:
            monkeypatch.setattr(kind, name, property(fail))
    monkeypatch.setattr(torch.Tensor, "repeat_interleave", fail)
    monkeypatch.setattr(launch, "run", fail)


@pytest.mark.parametrize(
    ("verifier", "refused"),
    [
        pytest.param(verifier, case, id=f"{name}-{case.name}")
        for verifiers, every in ((CHECKING, SEEN_BY_THE_HOST + VALUES), (UNCHECKED, SEEN_BY_THE_HOST))
        for name, verifier in verifiers.items()
        for case in every
    ],
)
def test_a_bad_argument_is_named_before_anything_is_computed(monkeypatch, verifier, refused):
    """Values by verifiers that check them, and what the host sees by all."""
    bad = refused.spoil(*step(SOUND, 0))
    forbid_to_compute(monkeypatch)
    with pytest.raises(ArgumentError, match=refused.match):
        verifier.verify(*bad)


@pytest.mark.parametrize("verifier", [*CHECKING.values(), *UNCHECKED.values()], ids=[*CHECKING, *UNCHECKED])
def test_the_ends_of_every_range_are_allowed(verifier):
    draft, target, streams = step(Case([0, 3, 1], 7, ""), 0)
    ids = draft.token_ids.new_tensor([0, 6, 0, 6])
    edges = Streams(
        streams.seeds.new_tensor([0, 2**63 - 1, 1]), streams.positions.new_tensor([0, 2**32 - 1, 2**31]), streams.width
    )
    verifier.verify(Draft(ids, draft.rows, draft.num_draft_tokens, 3), target, edges)
    none = torch.zeros(0, dtype=torch.int64, device=DEVICE)
    empty = target.select(none)
    assert len(verifier.verify(Draft(none, None, none, 2), empty, Streams(none, none, 3)).token_ids) == 0
    nothing = Draft.empty(3, DEVICE)
    rows = target.select(torch.arange(3, device=DEVICE))
    assert verifier.verify(nothing, rows, Streams(streams.seeds, streams.positions, 1)).token_ids.shape == (3, 1)


def test_shapes_are_checked_without_reading_a_device():
    """Tensors of the device meta have no data: to read any raises an error of another kind."""
    draft, target, streams = step(SOUND, 0)

    def without_data(instance: T) -> T:
        values = {field.name: getattr(instance, field.name) for field in dataclasses.fields(instance)}
        return changed(instance, **{k: to_meta(v) if isinstance(v, torch.Tensor) else v for k, v in values.items()})

    draft = changed(without_data(draft), rows=without_data(draft.rows))
    arguments.check(draft, without_data(target), without_data(streams), values=False)
    with pytest.raises((NotImplementedError, RuntimeError), match="meta"):
        arguments.check(draft, without_data(target), without_data(streams))
    with pytest.raises(ArgumentError, match="width"):
        arguments.check(draft, without_data(target), changed(without_data(streams), width=1))


@on_a_gpu
def test_sound_values_are_read_in_one_copy(monkeypatch):
    """Each read is a wait for the device."""
    inputs, reads = step(SOUND, 0), []
    for name in ("tolist", "item", "cpu", "numpy", "nonzero", "__bool__", "__int__", "__float__", "__index__"):
        method = getattr(torch.Tensor, name)

        def counted(tensor, *args, name=name, method=method):
            reads.append(name)
            return method(tensor, *args)

        monkeypatch.setattr(torch.Tensor, name, counted)
    arguments.check(*inputs)
    assert reads == ["tolist"]


@pytest.mark.parametrize("bad", [torch.nan, torch.inf], ids=["NaN", "inf"])
def test_logits_are_looked_at_only_when_asked(bad):
    draft, target, streams = step(SOUND, 0)
    arguments.check(draft, target, streams, finite=True)
    logits = target.logits.clone()
    logits[5, 2] = bad
    spoilt = LogitRows(logits, target.temperature, target.cutoff, None)
    arguments.check(draft, spoilt, streams)
    with pytest.raises(ArgumentError, match="^target: row 5 holds NaN or infinite logits"):
        arguments.check(draft, spoilt, streams, finite=True)
    normalizer = draft.rows.normalizer.clone()
    normalizer[6] = bad
    q = LogitRows(draft.rows.logits, draft.rows.temperature, draft.rows.cutoff, normalizer)
    with pytest.raises(ArgumentError, match=r"^draft\.rows: row 6"):
        arguments.check(changed(draft, rows=q), target, streams, finite=True)


# --- where the host may not wait for the device ---


@pytest.mark.parametrize(("capturing", "mode", "may"), [(False, 0, True), (True, 0, False), (False, 2, False)])
def test_values_are_left_alone_where_waiting_is_forbidden(monkeypatch, capturing, mode, may):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing)
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: mode)
    assert arguments._may_wait(torch.device("cuda")) is may
    assert arguments._may_wait(torch.device("cpu"))


@on_a_gpu
@pytest.mark.parametrize("verifier", [MaskedVerifier(), BlockVerifier()], ids=["masked", "block"])
def test_batched_verifiers_can_be_captured(verifier):
    """Also that nothing but the check waits, which is how benchmark/timer.py tells what can be captured."""
    draft, target, streams = step(SOUND, 1)

    def call() -> Verification:  # new objects, so that nothing derived is kept
        return verifier.verify(*(changed(argument) for argument in (draft, target, streams)))

    expected = call()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that this mode is a prototype
        torch.cuda.set_sync_debug_mode("error")
        try:
            call()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = call()
    graph.replay()
    assert torch.equal(out.token_ids, expected.token_ids)
