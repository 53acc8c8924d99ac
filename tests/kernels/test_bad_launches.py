"""What the kernels make of values that they do not check, and what their launches refuse."""

import contextlib
import faulthandler
import inspect
import os
from dataclasses import dataclass
from typing import Any
from unittest import mock

import pytest
import torch

from specbench.core import arguments
from specbench.core.errors import ArgumentError
from specbench.core.rng import Streams
from specbench.core.types import PADDING, Draft, LogitRows, Verification
from specbench.kernels import launch, launch_rows
from specbench.rules.rule import get_rule
from specbench.sampling import RowParams, SamplingParams, logit_rows
from tests.helpers.kernel_cases import DEVICE, GREEDY, RULES, Case, assert_agrees, changed, step, to_meta
from tests.helpers.surroundings import ABSURD, Guarded, Surroundings
from tests.interpreted import interpreter

LIMIT = 600  # seconds a case, compilation included, and on machines that others use
Step = tuple[Draft, LogitRows, Streams]


@pytest.fixture
def programs_by_themselves(monkeypatch, capfd):
    """Each has one tile. A launch that never ends takes the process along, with a traceback where pytest prints."""
    for name, value in {"TARGET_PROGRAMS": 10_000, "SCORE_CHUNK": 1, "EMIT_CHUNK": 1}.items():
        monkeypatch.setattr(launch, name, value)
    with capfd.disabled():
        printed = os.fdopen(os.dup(2), "w")
    with printed:
        faulthandler.dump_traceback_later(LIMIT, exit=True, file=printed)
        yield
        faulthandler.cancel_dump_traceback_later()


@dataclass(frozen=True)
class Launch:
    """A valid case and what is done to its device data; max_draft_tokens is the longest draft plus ``case.slack``."""

    case: Case
    token_ids: dict[int, int] | None = None
    counts: list[int] | None = None
    seeds: list[int] | None = None
    positions: list[int] | None = None
    bad_request: int | None = None  # whose first row is all NaN
    normalizers_known: bool = False  # the target's normalisers are given
    wraps: bool = False  # p is next to 1 at the ids' lowest 32 bits, which are a token's
    colder: float | None = None  # the temperature of all rows, for which no rule has an answer

    def arguments(self) -> Step:
        """The step with bad values. Drafted tokens are likely ones, so that most of what is sound is accepted."""
        draft, target, streams = step(self.case, 3, closeness=0.1)

        def changed(tensor: torch.Tensor, values: list[int] | None) -> torch.Tensor:
            return tensor if values is None else torch.tensor(values, device=DEVICE)

        for row, token in (self.token_ids or {}).items():
            draft.token_ids[row] = token
            if self.wraps:
                target.logits[row + draft.request_of_row[row], token % 2**32] = 30.0
        if self.bad_request is not None:
            target.logits[draft.first_row[self.bad_request] + self.bad_request] = torch.nan
        normalizer = target.normalizer if self.normalizers_known else target.log_normalizer
        temperature = target.temperature if self.colder is None else torch.full_like(target.temperature, self.colder)
        return (
            Draft(draft.token_ids, draft.rows, changed(draft.num_draft_tokens, self.counts), draft.max_draft_tokens),
            LogitRows(target.logits, temperature, target.cutoff, normalizer),
            Streams(changed(streams.seeds, self.seeds), changed(streams.positions, self.positions), streams.width),
        )


V = 7
RAGGED = Case([2, 3, 0, 2], V, "seven tokens, where four requests could draft twelve")
EVEN = Case([2, 2, 2], V, "as many tokens as there can be")
WIDE = Case([1, 2, 1], 2100, "two chunks a row, which are counted")
ONE_HOT = Case([2, 3, 0, 2], V, "a residual of p alone where an id is no token's", one_hot=True)
NEXT = Case([1, 1, 0, 1], V, "what comes after: each request that may have left a counter behind")
OUTSIDE = {0: V, 3: -1, 6: V + 1}  # first, second and last of their requests
FAR = {1: 2**31 - 1, 2: -(2**31) - 1, 5: 2**63 - 1, 6: -(2**63)}
WRAPPING = {row: 2**32 + token for row, token in enumerate(range(V))}  # in 32 bits ids of the vocabulary

LAUNCHES = {
    "ids just outside": Launch(RAGGED, token_ids=OUTSIDE),
    "ids far outside, normalisers known": Launch(RAGGED, token_ids=FAR, normalizers_known=True),
    "ids that wrap, one-hot": Launch(ONE_HOT, token_ids=WRAPPING, wraps=True),
    "ids just outside, a negative temperature": Launch(RAGGED, token_ids=OUTSIDE, colder=-1.0),
    "the largest int32 in a greedy row of NaN": Launch(
        Case([1, 1], V, "", [GREEDY], one_hot=True), token_ids={0: 2**31 - 1}, bad_request=0
    ),
    "a count above the bound": Launch(RAGGED, counts=[2, 9, 0, 2]),
    "counts whose sum overflows": Launch(RAGGED, counts=[2**62, 2**62, 2**62, 2**62]),
    "negative counts that add up": Launch(RAGGED, counts=[11, -3, 0, -1]),
    "the least count": Launch(RAGGED, counts=[2, -(2**63), 3, 2]),
    "counts of too many tokens": Launch(RAGGED, counts=[3, 3, 3, 3]),
    "counts of too few tokens": Launch(RAGGED, counts=[1, 0, 0, 1]),
    "counts above the bound, in chunks": Launch(WIDE, counts=[7, 2, 1]),
    "counts that are not read": Launch(EVEN, counts=[9, -3, 0]),
    "seeds and positions": Launch(
        RAGGED, seeds=[-1, -(2**63), -(2**32), 2**63 - 1], positions=[-1, 2**32 + 17, -(2**63), 2**63 - 1]
    ),
}


def as_read(bad: Step) -> Step:
    """The valid step that the kernel takes this one for, as the docstring of launch.verify has it.

    An id outside of the vocabulary becomes a token more, to which p gives no probability and q next to none.
    """
    draft, target, streams = bad
    n, batch, gamma = len(draft.token_ids), len(draft.num_draft_tokens), draft.max_draft_tokens
    counts, left = [], n
    for count in draft.num_draft_tokens.tolist():
        counts.append(gamma if n == batch * gamma else min(max(count, 0), gamma, left))
        left -= counts[-1]
    used = torch.arange(sum(counts), device=DEVICE)
    token_ids, vocabulary = draft.token_ids[used], target.logits.shape[1]
    inside = (token_ids >= 0) & (token_ids < vocabulary)

    def with_one_more(rows: LogitRows, logit: float) -> LogitRows:
        logits = torch.nn.functional.pad(rows.logits, (0, 1), value=logit)
        return LogitRows(logits, rows.temperature, rows.cutoff, None)

    return (
        Draft(
            torch.where(inside, token_ids, vocabulary),
            None if draft.rows is None else with_one_more(draft.rows.select(used), -40.0),
            torch.tensor(counts, device=DEVICE),
            gamma,
        ),
        with_one_more(target.select(torch.arange(len(used) + batch, device=DEVICE)), -torch.inf),
        streams,
    )


def embedded(bad: Step, surroundings: Surroundings) -> Step:
    """The step among what would be accepted (beside the drafted tokens' rows) or yields no token (elsewhere)."""
    draft, target, streams = bad

    def rows(name: str, inner: LogitRows, beside: float) -> LogitRows:
        normalizer = inner.log_normalizer
        return LogitRows(
            surroundings.around_rows(f"{name}.logits", inner.logits, beside),
            surroundings.around(f"{name}.temperature", inner.temperature, torch.nan),
            surroundings.around(f"{name}.cutoff", inner.cutoff, torch.inf),
            None if normalizer is None else surroundings.around(f"{name}.log_normalizer", normalizer, torch.nan),
        )

    return (
        Draft(
            surroundings.around("token_ids", draft.token_ids, ABSURD),
            None if draft.rows is None else rows("draft", draft.rows, -50.0),
            surroundings.around("num_draft_tokens", draft.num_draft_tokens, 3),
            draft.max_draft_tokens,
        ),
        rows("target", target, 50.0),
        Streams(
            surroundings.around("seeds", streams.seeds, ABSURD),
            surroundings.around("positions", streams.positions, ABSURD),
            streams.width,
        ),
    )


def launched(inputs: Step, block: bool, workspace: Guarded) -> Verification:
    """What the kernel makes of a step, if it kept to the memory that it was given."""
    surroundings = Surroundings()
    batch, width = len(inputs[0].num_draft_tokens), inputs[0].max_draft_tokens + 1
    out = Verification(
        surroundings.around("token_ids", torch.full((batch * width,), ABSURD, device=DEVICE), ABSURD).view(batch, -1),
        surroundings.around("num_accepted", torch.full((batch,), ABSURD, device=DEVICE), ABSURD),
    )
    run = launch.run

    def watched(*args: Any, **options: Any) -> None:
        inside = surroundings.inside + workspace.surroundings.inside
        with interpreter.only_within(inside) if launch.INTERPRETED else contextlib.nullcontext():
            run(*args, **options)

    with mock.patch.object(launch, "run", watched):
        launch.verify(*embedded(inputs, surroundings), block=block, workspace=workspace, out=out)
    surroundings.assert_untouched()
    workspace.surroundings.assert_untouched()
    workspace.assert_counters_are_0()
    return out


@pytest.mark.thorough
@pytest.mark.usefixtures("programs_by_themselves", "unchecked")
@RULES
@pytest.mark.parametrize("bad", LAUNCHES.values(), ids=LAUNCHES.keys())
def test_a_bad_value_has_the_result_that_is_promised(bad, block):
    """It ends, keeps to its memory, emits what launch.verify says, and the next launch finds a sound workspace."""
    rule, workspace, inputs = "block" if block else "token", Guarded(), bad.arguments()
    got = launched(inputs, block, workspace)
    assert ((got.token_ids >= PADDING) & (got.token_ids < inputs[1].logits.shape[1])).all(), "an id of no token"
    if bad.colder is None:
        with mock.patch.object(arguments, "check"):  # seeds and positions stay as they are
            expected = get_rule(rule).reference.verify(*as_read(inputs))
        if bad.bad_request is not None:  # the twin's argmax of NaN is no token either
            expected.token_ids[bad.bad_request], expected.num_accepted[bad.bad_request] = PADDING, 0
        assert got.num_accepted.tolist() == expected.num_accepted.tolist(), "num_accepted"
        assert got.token_ids.tolist() == expected.token_ids.tolist(), "token_ids"
    following = step(NEXT, 1)
    assert_agrees(rule, following, launched(following, block, workspace))


@RULES
def test_out_has_to_fit(block):
    draft, target, streams = step(RAGGED, 0)
    tokens, accepted = torch.zeros((4, 4), dtype=torch.int64, device=DEVICE), torch.zeros_like(streams.seeds)
    workspace = launch.Workspace()

    def verify(out: Verification) -> Verification:
        return launch.verify(draft, target, streams, block=block, workspace=workspace, out=out)

    for wrong in (tokens[:, :3], tokens[:3], tokens.int(), tokens.t(), to_meta(tokens)):
        with pytest.raises(ArgumentError, match=r"^out\.token_ids: "):
            verify(changed(Verification(tokens, accepted), token_ids=wrong))
    for wrong in (accepted[:3], accepted.int(), to_meta(accepted)):
        with pytest.raises(ArgumentError, match=r"^out\.num_accepted: "):
            verify(changed(Verification(tokens, accepted), num_accepted=wrong))
    assert_agrees("block" if block else "token", (draft, target, streams), verify(Verification(tokens, accepted)))


def test_rows_and_their_parameters_have_to_fit():
    logits = torch.zeros((5, 7), device=DEVICE)
    params = RowParams.of([SamplingParams(top_k=2)] * 5, DEVICE)
    few = params.select(torch.arange(2, device=DEVICE))
    with pytest.raises(ArgumentError, match=r"^params: 2 rows for 5 rows of logits"):
        logit_rows(logits, few)
    rows, u = logit_rows(logits, RowParams.of([SamplingParams()] * 5, DEVICE)), torch.full((5,), 0.5, device=DEVICE)
    with pytest.raises(ArgumentError, match=r"^rows\.temperature: .*\(2,\)"):
        launch_rows.sample(changed(rows, temperature=rows.temperature[:2]), u.double())
    with pytest.raises(ArgumentError, match=r"^u: torch.float64 \(4,\)"):
        launch_rows.sample(rows, u[:4].double())
    find_cutoffs = inspect.unwrap(launch_rows.find_cutoffs)
    for name in ("temperature", "top_k", "top_p", "min_p"):
        parameters = {parameter: getattr(params, parameter) for parameter in ("temperature", "top_k", "top_p", "min_p")}
        with pytest.raises(ArgumentError, match=rf"^{name}: .*\(2,\)"):
            find_cutoffs(logits, **{**parameters, name: getattr(few, name)})
        with pytest.raises(ArgumentError, match=rf"^{name}: torch.int32"):
            find_cutoffs(logits, **{**parameters, name: parameters[name].int()})


def test_a_top_k_of_no_token_truncates_nothing():
    logits = torch.randn((4, 70), generator=torch.Generator().manual_seed(0)).to(DEVICE)
    ones = torch.ones(4, dtype=torch.float64, device=DEVICE)
    top_k = torch.tensor([-1, -(2**63), 2**31 + 1, 2**63 - 1], device=DEVICE)
    cutoff, normalizer = launch_rows.find_cutoffs(logits, ones, top_k, ones, 0 * ones)
    assert (cutoff == -torch.inf).all()
    torch.testing.assert_close(normalizer, logits.double().logsumexp(dim=1), rtol=0, atol=2e-6)
