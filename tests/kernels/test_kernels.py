"""The verification kernel against its PyTorch twins, through the interpreter without a GPU and compiled with one.

Uninitialised memory is poisoned throughout: what a kernel does not write, or reads before it is written, shows.
"""

import dataclasses

import numpy as np
import pytest
import torch

from specbench.core.errors import ArgumentError
from specbench.core.rng import Streams
from specbench.core.types import PADDING, Draft, LogitRows
from specbench.kernels import launch, launch_rows
from specbench.rules.fused import FusedVerifier
from specbench.sampling import RowParams, SamplingParams, logit_rows
from tests.helpers.kernel_cases import (
    CASES,
    DEVICE,
    GREEDY,
    RULES,
    WARM,
    Case,
    assert_agrees,
    cutoffs,
    fused_agrees,
    step,
    unnormalised,
)  # fmt: skip
from tests.helpers.threads import Meeting, in_two_threads

pytestmark = pytest.mark.usefixtures("poison", "few_programs")


@pytest.mark.cases(10, 30)
@RULES
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_agrees_with_its_twin(case, block):
    """Seeds are fixed, and none of these draws lies within rounding of a threshold."""
    for seed in range((1 if case.vocabulary > 10_000 else 2) if launch.INTERPRETED else 3):
        fused_agrees(block, *step(case, seed))


@pytest.mark.skipif(not launch.INTERPRETED, reason="compiled kernels replace nothing")
def test_interpreted_launches_of_two_threads_follow_one_another():
    """The interpreter replaces functions of triton.language; of two at once, one failed or emitted other tokens."""
    meeting = Meeting()

    class Kernel:
        def __getitem__(self, grid):
            return meeting.visit

    in_two_threads(lambda: launch.run(Kernel(), 1))
    assert not meeting.together


@pytest.mark.cases(1)
@RULES
def test_tokens_do_not_depend_on_the_grid(block, monkeypatch):
    """Neither on how tiles are shared out nor on how far emitting lags behind scoring."""
    arguments = step(CASES["mixed"], 1)
    results = []
    for programs, chunk, lag in ((1, 64, 1), (10_000, 64, 1), (4, 2, 10_000), (1, 1, 3)):
        monkeypatch.setattr(launch, "TARGET_PROGRAMS", programs)
        monkeypatch.setattr(launch, "SCORE_CHUNK", chunk)
        monkeypatch.setattr(launch, "EMIT_CHUNK", chunk)
        monkeypatch.setattr(launch, "LAG", lag)
        results.append(FusedVerifier(block=block).verify(*arguments).token_ids)
    assert all(torch.equal(result, results[0]) for result in results)


@pytest.mark.cases(1)
@RULES
def test_a_workspace_serves_one_batch_after_another(block):
    """Counters are 0 again after a launch, and what an earlier, larger batch left does not matter."""
    verifier = FusedVerifier(block=block)
    for name in ("ragged", "mixed", "tiny", "long", "one request", "mixed"):
        arguments = step(CASES[name], 4)
        assert_agrees(verifier.rule, arguments, verifier.verify(*arguments))


@RULES
def test_nothing_is_published_of_a_request_that_drafted_nothing(block, monkeypatch):
    """Its emitting programs wait for no outcome, so a late outcome would stay and be read by the next launch."""
    verifier, arguments, run = FusedVerifier(block=block), step(CASES["ragged"], 4), launch.run
    counts = torch.tensor(CASES["ragged"].counts)

    def scoring_alone(kernel, programs, *operands, **options):
        batch, gamma, _, _, tiles, chunk = operands[6:12]
        run(kernel, batch * gamma * -(-tiles // chunk), *operands, **options)

    monkeypatch.setattr(launch, "run", scoring_alone)
    verifier.verify(*arguments)
    outcome = verifier._workspace.scratch(len(counts), 1, 1, 1, arguments[1].logits.device).outcome[: len(counts)]
    assert ((outcome != 0).cpu() == (counts > 0)).all()


@RULES
def test_a_drafted_token_far_below_the_largest_logit(block):
    """Sums are taken relative to the drafted token's logit; where that overflows, they are taken again."""
    draft, target, streams = step(CASES["two tiles"], 2)
    rows = torch.arange(len(draft.token_ids), device=DEVICE)
    for shift in (-90.0, -300.0, -torch.inf):
        logits = target.logits.clone()
        logits[rows + draft.request_of_row, draft.token_ids] = shift
        fused_agrees(block, draft, unnormalised(target, logits), streams)


@RULES
def test_a_forbidden_draft_beside_a_tile_without_tokens(block):
    """As constraints leave a row: -inf over whole tiles, and at the drafted token that sums are taken relative to."""
    draft, target, streams = step(CASES["two tiles"], 2)
    rows = torch.arange(len(draft.token_ids), device=DEVICE) + draft.request_of_row
    for forbidden in (slice(2048, None), slice(0, 2048)):
        logits = target.logits.clone()
        logits[:, forbidden] = -torch.inf
        logits[rows, draft.token_ids] = -torch.inf
        got = fused_agrees(block, draft, unnormalised(target, logits), streams)
        assert (got.token_ids[:, 0] != PADDING).all()


@RULES
def test_ties_go_to_the_lowest_index(block):
    """Largest logits tied within a tile and across tiles: in bonus rows, recovered tokens and accept tests."""
    vocabulary, tied = 4099, (70, 90, 2050, 4098)
    logits = torch.zeros((6, vocabulary), device=DEVICE)
    logits[:, tied] = 3.0
    logits[1, tied[:2]] = 0.0  # the lowest is in the second tile
    params = RowParams.of([GREEDY] * 6, DEVICE)
    counts = torch.tensor([1, 1, 1], device=DEVICE)
    token_ids = torch.tensor([70, 90, 4098], device=DEVICE)  # of three largest logits, the lowest alone is accepted
    streams = Streams(counts, counts, 2)
    got = FusedVerifier(block=block).verify(Draft(token_ids, None, counts, 1), logit_rows(logits, params), streams)
    assert got.token_ids.tolist() == [[70, 2050], [70, PADDING], [70, PADDING]]
    tokens, _ = launch_rows.sample(logit_rows(logits, params), torch.full((6,), 0.9, device=DEVICE).double())
    assert tokens.tolist() == [70, 2050, 70, 70, 70, 70]


@RULES
def test_a_draft_whose_normalisers_are_not_known(block):
    draft, target, streams = step(CASES["greedy and random"], 1)
    fused_agrees(block, dataclasses.replace(draft, rows=unnormalised(draft.rows)), target, streams)


def far_rows(n: int, vocabulary: int, columns: int) -> tuple[torch.Tensor, ...]:
    """Matrices [n, vocabulary] side by side, float16, whose row 2 and later begin beyond 2^31 elements."""
    stride = 2**30 + 64
    size = (n - 1) * stride + columns * vocabulary
    # NumPy's memory takes no place until it is written.
    memory = torch.from_numpy(np.empty(size, np.float16)) if launch.INTERPRETED else torch.empty(size, dtype=torch.half)
    memory = memory.to(DEVICE)
    return tuple(memory.as_strided((n, vocabulary), (stride, 1), column * vocabulary) for column in range(columns))


def test_rows_beyond_32_bit_offsets():
    """A row's offset is a product of two 32-bit numbers that 32 bits do not hold: 8,000 rows of 262,144 logits."""
    if not launch.INTERPRETED and torch.cuda.mem_get_info()[0] < 8 * 2**30:
        pytest.skip("needs 8 GiB of GPU memory")
    vocabulary = 300
    p_far, q_far = far_rows(4, vocabulary, 2)
    reached = set()
    for seed in range(4):
        draft, target, streams = step(Case([3], vocabulary, "", dtype=torch.float16), seed, closeness=0.2)
        if seed % 2:
            target.logits[2, draft.token_ids[2]] = -torch.inf
        p_far.copy_(target.logits)
        q_far[:3].copy_(draft.rows.logits)
        far_p = unnormalised(target, p_far)
        far_q = LogitRows(q_far[:3], draft.rows.temperature, draft.rows.cutoff, draft.rows.log_normalizer)
        for block in (False, True):
            got = fused_agrees(block, dataclasses.replace(draft, rows=far_q), far_p, streams)
            reached.add(int(got.num_accepted[0]))
    assert {2, 3} <= reached  # tokens were recovered from row 2, and drawn from the bonus row
    u = torch.full((4,), 0.4, dtype=torch.float64, device=DEVICE)
    for one, two in zip(launch_rows.sample(far_p, u), launch_rows.sample(unnormalised(target), u), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-6, atol=0)  # other sums, since rows are aligned otherwise
    params = RowParams.of([SamplingParams(top_k=5), SamplingParams(top_p=0.8)] * 2, DEVICE)
    for one, two in zip(cutoffs(p_far, params), cutoffs(target.logits, params), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-6, atol=0)


@RULES
def test_a_residual_without_mass_is_drawn_from_p(block):
    """As rounding could leave it: here q is everywhere above p, by a normaliser that is too small."""
    draft, target, streams = step(CASES["two tiles"], 3)
    owner = torch.arange(len(draft.token_ids), device=DEVICE) + draft.request_of_row
    low = target.select(owner).normalizer - 1.0
    q = LogitRows(target.logits[owner], draft.rows.temperature, draft.rows.cutoff, low)
    got = fused_agrees(block, dataclasses.replace(draft, rows=q), target, streams)
    assert (got.num_accepted < draft.num_draft_tokens).any()


@pytest.mark.cases(2)
@RULES
@pytest.mark.parametrize("greedy", [False, True], ids=["random", "greedy"])
def test_a_bad_row_yields_no_token(block, greedy):
    """A row that cannot be drawn from gives padding, whichever it is; the request between two such is not touched."""
    case = Case([2, 2, 2], 2100, "", [GREEDY if greedy else WARM])
    draft, target, streams = step(case, 8, closeness=0.1)
    sound = FusedVerifier(block=block).verify(draft, target, streams)
    assert sound.num_accepted.tolist() == [2, 2, 2]
    for row in range(3):  # of the first request and of the last: first, second, bonus
        logits = target.logits.clone()
        logits[row, 77] = torch.nan if row % 2 else torch.inf
        logits[6 + row, 77] = torch.inf if row % 2 else torch.nan
        got = FusedVerifier(block=block).verify(draft, unnormalised(target, logits), streams)
        assert got.token_ids[[0, 2], got.num_accepted[[0, 2]]].tolist() == [PADDING, PADDING]
        assert torch.equal(got.token_ids[1], sound.token_ids[1])


def test_a_bad_draft_row_yields_no_token():
    draft, target, streams = step(Case([2, 2], 2100, ""), 6)
    normalizer = draft.rows.normalizer.clone()
    normalizer[2] = torch.nan
    q = LogitRows(draft.rows.logits, draft.rows.temperature, draft.rows.cutoff, normalizer)
    for block in (False, True):
        got = FusedVerifier(block=block).verify(dataclasses.replace(draft, rows=q), target, streams)
        assert got.token_ids[1, got.num_accepted[1]] == PADDING


def test_arguments_that_the_kernel_cannot_take():
    draft, target, streams = step(CASES["tiny"], 0)
    verifier = FusedVerifier()

    def refused(match: str, *, p: LogitRows = target, d: Draft = draft) -> None:
        with pytest.raises(ArgumentError, match=match):
            verifier.verify(d, p, streams)

    def rows(logits: torch.Tensor, **changes: torch.Tensor) -> LogitRows:
        parts = {"temperature": target.temperature, "cutoff": target.cutoff, "log_normalizer": None} | changes
        return LogitRows(logits, **parts)

    def drafted(token_ids: torch.Tensor, q: LogitRows | None) -> Draft:
        return Draft(token_ids, q, draft.num_draft_tokens, draft.max_draft_tokens)

    refused(r"target: logits of torch.float64", p=rows(target.logits.double()))
    refused(r"target: logits with stride \d+", p=rows(target.logits.t().contiguous().t()))
    everyother = target.temperature.repeat_interleave(2)[::2]
    refused(r"target.temperature", p=rows(target.logits, temperature=everyother))
    refused(r"draft.token_ids", d=drafted(draft.token_ids.repeat_interleave(2)[::2], draft.rows))
    elsewhere = torch.zeros_like(target.logits, device="meta")
    refused(r"target", p=rows(elsewhere))


@pytest.mark.parametrize("bad", [7, -1])
def test_values_are_checked_in_debug_mode_and_harmless_without(monkeypatch, bad):
    draft, target, streams = step(CASES["tiny"], 0)
    token_ids = draft.token_ids.clone()
    token_ids[3] = bad
    # What lies beyond the row's ends would be accepted.
    target.logits[3, -1] = target.logits[5, 0] = 30.0
    draft.rows.logits[2, -1] = draft.rows.logits[4, 0] = -30.0
    outside = Draft(token_ids, draft.rows, draft.num_draft_tokens, draft.max_draft_tokens)
    with pytest.raises(ArgumentError, match=rf"draft.token_ids\[3\] = {bad} "):
        FusedVerifier(debug=True).verify(outside, target, streams)
    monkeypatch.setenv("SPECBENCH_DEBUG", "1")
    logits = target.logits.clone()
    logits[2, 3] = torch.nan
    with pytest.raises(ArgumentError, match="target: row 2"):
        FusedVerifier().verify(draft, unnormalised(target, logits), streams)
    monkeypatch.setenv("SPECBENCH_DEBUG", "0")
    result = FusedVerifier().verify(outside, target, streams)
    assert result.num_accepted[1] == 0  # the token outside is refused, and another is drawn
    assert 0 <= result.token_ids[1, 0] < 7
