"""Penalties, biases and bans that a verifier's launch applies, or whoever asks for the logits first."""

import dataclasses

import pytest
import torch

from specbench.benchmark.synthetic import Case, make_case
from specbench.core.errors import ArgumentError
from specbench.core.masked_rows import MaskedRows
from specbench.core.rng import Streams
from specbench.core.types import Draft, LogitRows
from specbench.kernels import accept, launch, launch_rows, launch_shape, launch_tally, verify, workspace
from specbench.sampling import History, SamplingParams, where, whole_rows
from specbench.verifiers.fused import FusedVerifier
from tests.bad_launches import Guarded
from tests.cases import BASE
from tests.interpreter import watched
from tests.kernel_cases import DEVICE, RULES, assert_agrees, on_a_gpu

pytestmark = pytest.mark.usefixtures("poison", "few_programs", "in_place")
PENALTIES = {"presence_penalty": 0.5, "frequency_penalty": 0.3, "repetition_penalty": 1.3}
BANS = {"bad_words": ["stop", "never again", "as an assistant"], "min_tokens": 99}
KINDS = {
    "penalties": PENALTIES,
    "biases and bans": {"logit_bias": {0: 2.0, 1: -3.0, 290: 4.0}, **BANS},
    "bans": BANS,
    "all": {**PENALTIES, **BANS, "logit_bias": {3: 1.0, 290: 4.0}, "allowed_token_ids": list(range(0, 300, 3))},
}
EVERY = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture
def in_place(monkeypatch):
    """Kernels on any device, which write into the logits that they are given, and into nothing else."""
    monkeypatch.setattr(where, "by_kernels", lambda _: True)
    if launch.INTERPRETED:
        for module in (launch, launch_rows, launch_shape, launch_tally):
            monkeypatch.setattr(module, "run", watched(module.run))


def case_of(kind: str, **changes: object) -> Case:
    sampling = SamplingParams.from_mapping(KINDS[kind], temperature=0.8)
    few = {"batch_size": 3, "vocabulary": 300, "gamma": 2, "context": 24, "dtype": "float32"}
    return make_case(dataclasses.replace(BASE, sampler=kind, sampling=sampling, **{**few, **changes}), 0, 0, DEVICE)


def refused(*_: object, **__: object) -> None:
    raise ArgumentError("none today")


def counted(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The kernels that are launched from now on."""
    kernels = []
    for module in (launch, launch_rows, launch_shape, launch_tally):
        monkeypatch.setattr(module, "run", lambda kernel, *rest, run=module.run, **more: (
            kernels.append(kernel), run(kernel, *rest, **more)
        ))  # fmt: skip
    return kernels


@RULES
@EVERY
def test_a_verifiers_launch_does_what_one_before_it_would(kind, block, monkeypatch):
    """Bit for bit, in one launch, however programs are shared out; and it leaves its counters as it found them."""
    case = case_of(kind, vocabulary=launch.TILE + 300, dtype="bfloat16")
    monkeypatch.setattr(launch_shape, "IN_VERIFIER", False)
    expected = FusedVerifier(block=block).verify(*case.inputs())
    left = case.target_logits.clone()
    assert not torch.equal(left, case.raw_logits)
    monkeypatch.setattr(launch_shape, "IN_VERIFIER", True)
    verifier, kernels = FusedVerifier(block=block), counted(monkeypatch)
    verifier._workspace = memory = Guarded()
    for programs, lead, tokens in ((1024, 1, 2), (0, 10_000, 128)):
        monkeypatch.setattr(launch_shape, "PROGRAMS", programs)
        monkeypatch.setattr(launch_shape, "TOKENS", tokens)
        monkeypatch.setattr(launch, "LEAD", lead)
        case.restore()
        got = verifier.verify(*case.inputs())
        assert torch.equal(case.target_logits, left)
        assert torch.equal(got.token_ids, expected.token_ids)
        assert torch.equal(got.num_accepted, expected.num_accepted)
        memory.assert_counters_are_0()
        memory.surroundings.assert_untouched()
    assert kernels == [launch.shape_and_verify_kernel] * 2


@RULES
def test_requests_of_a_padded_batch_are_penalised_whole(block, monkeypatch):
    """Also those that drafted nothing, whose token is drawn without a score."""
    case, found = case_of("penalties"), []
    counts = torch.tensor([0, 2, 0], device=DEVICE)
    for within in (False, True):
        monkeypatch.setattr(launch_shape, "IN_VERIFIER", within)
        case.restore()
        draft, target, streams = case.inputs()
        padded = Draft(draft.token_ids, draft.rows, counts, draft.max_draft_tokens, padded=True)
        found.append((FusedVerifier(block=block).verify(padded, target, streams), case.target_logits.clone()))
    assert torch.equal(found[0][1], found[1][1])
    assert torch.equal(found[0][0].token_ids, found[1][0].token_ids)


@pytest.mark.skipif(not launch.INTERPRETED, reason="test_scores_wait_for_penalties is what shows it on a GPU")
def test_programs_that_read_logits_wait_until_they_are_shaped(monkeypatch):
    """One after another, as the interpreter runs them, they would find it done whether they wait or not."""
    case, waited = case_of("bans"), []
    for module in (accept, verify):
        monkeypatch.setattr(module, "await_shaped", lambda _, request, __: waited.append(request.handle.data.item()))
    draft, target, streams = case.inputs()
    counts = torch.tensor([0, 2, 1], device=DEVICE)
    padded = Draft(draft.token_ids, draft.rows, counts, draft.max_draft_tokens, padded=True)
    FusedVerifier().verify(padded, target, streams)
    assert sorted(waited) == [0, 1, 1, 2], "whoever draws for a request without a draft, and who scores a row"


@pytest.mark.parametrize("known", [True, False])
def test_what_a_verifiers_launch_cannot_do_is_done_before(known, monkeypatch):
    """Nothing is scored where normalisers are known, and of fewer tokens a request's rows stand in other places."""
    case = case_of("penalties")
    draft, target, streams = case.inputs()
    plain = case.shaped_before.target()
    if known:
        parts = (target.raw, target.temperature, target.cutoff, plain.normalizer)
        target = MaskedRows(*parts, pending=target.pending)
    else:
        draft = Draft(draft.token_ids, draft.rows, draft.num_draft_tokens, draft.max_draft_tokens + 1)
        streams = Streams(streams.seeds, streams.positions, streams.width + 1)
    kernels = counted(monkeypatch)
    got = FusedVerifier().verify(draft, target, streams)
    assert kernels == [launch_shape.shape_kernel, launch.verify_kernel]
    assert torch.equal(case.target_logits, plain.logits)
    assert_agrees("token", (draft, plain, streams), got)


def test_whoever_asks_first_penalises_and_nobody_does_twice():
    case = case_of("penalties")
    expected = case.shaped_before.target_logits
    _, target, _ = case.inputs()
    assert torch.equal(target.raw, case.raw_logits)
    assert torch.equal(target.logits, expected)
    assert target.pending is None
    case.restore()
    draft, target, streams = case.inputs()
    FusedVerifier().verify(draft, target, streams)
    assert torch.equal(target.logits, expected)
    assert torch.equal(target.raw, expected)


def test_a_launch_that_is_refused_leaves_them_pending(monkeypatch):
    """The next launch of the same rows would verify logits that nobody penalised."""
    case = case_of("penalties")
    draft, target, streams = case.inputs()
    verifier = FusedVerifier()
    with monkeypatch.context() as capturing:
        capturing.setattr(workspace, "captures", lambda _: True)
        with pytest.raises(ArgumentError, match="^workspace"):
            verifier.verify(draft, target, streams)
    verifier.verify(draft, target, streams)
    assert torch.equal(case.target_logits, case.shaped_before.target_logits)
    case.restore()
    _, target, _ = case.inputs()
    monkeypatch.setattr(launch_shape, "run", refused)
    with pytest.raises(ArgumentError, match="^none today"):
        target.pending.apply()
    assert target.pending is not None


@pytest.mark.parametrize("kind", ["penalties", "all"])
@pytest.mark.parametrize("use", ["sample", "select", "normalized", "interleave"])
def test_rows_are_penalised_before_anything_else_is_done_with_them(kind, use):
    case = case_of(kind, gamma=0)  # so that each row has a mask of its own
    plain, rows = case.shaped_before.target(), case.target()
    parts = (rows.raw, rows.temperature, rows.cutoff, plain.normalizer)  # to compute it would penalise
    rows = MaskedRows(*parts, rows.mask, launch_shape.allow, rows.pending)
    if use == "sample":
        u = torch.linspace(0.1, 0.9, len(rows), dtype=torch.float64, device=DEVICE)
        assert torch.equal(launch_rows.sample(rows, u)[0], launch_rows.sample(plain, u)[0])
        return
    some = torch.tensor([2, 0], device=DEVICE)
    made = {
        "select": lambda of: of.select(some),
        "normalized": lambda of: of.normalized(of.temperature.double()),
        "interleave": lambda of: LogitRows.interleave([of]),
    }[use]
    assert torch.equal(made(rows).logits, made(plain).logits)


def test_nothing_is_pending_of_no_requests():
    case = case_of("penalties")
    parts = (getattr(case.history, name)[:0] for name in ("texts", "prompt_lengths", "text_lengths", "drafted"))
    history = History(*parts, case.history.request[:0], case.history.offset[:0])
    params = case.target_params.leading(0)
    rows = whole_rows(case.target_logits[:0], params, case.target_cutoff[:0], history, in_place=True)
    assert rows.logits.shape == (0, 300)


@on_a_gpu
@RULES
@pytest.mark.parametrize("lead", [1, 512])
def test_scores_wait_for_penalties(block, lead, monkeypatch):
    """With more requests than a GPU holds at once, and programs that start together."""
    case = case_of("all", batch_size=700, vocabulary=9000, dtype="bfloat16")
    monkeypatch.setattr(launch, "LEAD", lead)
    found = []
    for within in (False, *(5 * [True])):
        monkeypatch.setattr(launch_shape, "IN_VERIFIER", within)
        case.restore()
        found.append(FusedVerifier(block=block).verify(*case.inputs()).token_ids)
    assert all(torch.equal(each, found[0]) for each in found)
