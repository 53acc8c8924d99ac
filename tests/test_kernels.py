"""The Triton kernels against their PyTorch twins, through the interpreter without a GPU and compiled with one.

Uninitialised memory is poisoned throughout: what a kernel does not write, or reads before it is written, shows.
"""

from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

from specbench.errors import ArgumentError
from specbench.kernels import launch, launch_rows
from specbench.rng import Stream, Streams
from specbench.sampling import RowParams, SamplingParams, draw, inverse_cdf, logit_rows
from specbench.sampling.rows import sorted_cutoffs
from specbench.types import PADDING, Draft, LogitRows, Verification
from specbench.verifiers.agreement import TWINS, classify
from specbench.verifiers.fused import FusedVerifier
from tests.cases import MIXED

DEVICE = torch.device("cpu" if launch.INTERPRETED else "cuda")
GREEDY, PLAIN, WARM = SamplingParams(temperature=0.0), SamplingParams(), SamplingParams(temperature=0.8)
APART = [WARM, PLAIN, GREEDY, SamplingParams(temperature=2.0)]
RULES = pytest.mark.parametrize("block", [False, True], ids=["token", "block"])
on_a_gpu = pytest.mark.skipif(launch.INTERPRETED, reason="CUDA graphs and compilation need a GPU")


@dataclass(frozen=True)
class Case:
    """A regime and why it is one."""

    counts: list[int]
    vocabulary: int
    reason: str
    params: list[SamplingParams] = field(default_factory=lambda: [WARM])
    dtype: torch.dtype = torch.float32
    one_hot: bool = False
    padding: int = 0  # columns between the rows of a wider matrix
    slack: int = 0  # by how much max_draft_tokens exceeds every draft
    by_row: bool = False  # params one after another to rows, p's other than q's; else to requests


CASES = {
    "tiny": Case([3, 1, 2], 7, "a vocabulary smaller than a group of tokens"),
    "ragged": Case([0, 4, 1, 0, 3], 300, "drafts of different lengths, empty ones first and among them: row offsets"),
    "nothing drafted": Case([0, 0], 300, "no scoring programs at all"),
    "one request": Case([5], 300, "gamma 5 in lanes for 8"),
    "long": Case([17, 3], 300, "gamma beyond the lanes that small ones share, and in lanes for 32"),
    "lanes filled": Case([8, 8], 300, "gamma equal to the lanes: the bonus column has none of its own"),
    "two tiles": Case([2, 2], 2048 + 5, "a last tile of five tokens"),
    "whole tiles": Case([2, 2], 4096, "no last tile with a mask"),
    "odd": Case([2, 1], 4099, "rows that start at odd addresses"),
    "greedy": Case([3, 0, 2], 2100, "argmaxes across tiles, bonus and recovered", [GREEDY]),
    "mixed": Case([3, 2, 4, 1, 2], 2100, "greedy, random and truncated requests in one launch", MIXED),
    "greedy and random": Case([2, 2, 2, 2], 2100, "greedy requests where normalisers are not known", [GREEDY, WARM]),
    "one-hot": Case([3, 0, 2], 2100, "drafts without probabilities", one_hot=True),
    "one-hot mixed": Case([3, 2, 1, 2, 2], 2100, "the same, greedy and truncated", MIXED, one_hot=True),
    "bf16": Case([3, 2], 2100, "ties are common", [WARM, GREEDY], torch.bfloat16),
    "fp16": Case([3, 2], 2100, "the third dtype", [WARM, GREEDY], torch.float16),
    "wide stride": Case([2, 0, 1], 1000, "rows of a padded matrix", dtype=torch.bfloat16, padding=24),
    "cold": Case([3, 3], 2100, "temperature 0.01: sums of one term, weights that underflow", [SamplingParams(0.01)]),
    "hot": Case([3, 3], 2100, "temperature 50: every token weighs the same", [SamplingParams(50.0)]),
    "rows apart": Case([3, 1, 4], 2100, "each row its own parameters, truncated ones among them", MIXED, by_row=True),
    "rows apart, not known": Case([3, 1, 4], 2100, "the same where normalisers are not known", APART, by_row=True),
    "rows apart, one-hot": Case([3, 1, 4], 2100, "the same without q", MIXED, one_hot=True, by_row=True),
    "bound not reached": Case([2, 0, 1], 300, "no request drafts as many as the host allows for", slack=4),
    "49,152": Case([1], 49_152, "SmolLM2", dtype=torch.bfloat16),
    "128,256": Case([1], 128_256, "Llama 3: not a power of two tiles", dtype=torch.bfloat16),
    "151,936": Case([1], 151_936, "Qwen 3: 75 tiles in lanes for 128", dtype=torch.bfloat16),
    "262,144": Case([1], 262_144, "Gemma 3: the largest vocabulary in use", dtype=torch.bfloat16),
}


@pytest.fixture(autouse=True)
def poison(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.empty gives NaN, and integers that are no index."""
    empty = torch.empty

    def poisoned(*args: object, **kwargs: object) -> torch.Tensor:
        tensor = empty(*args, **kwargs)
        return tensor.fill_(torch.nan if tensor.is_floating_point() else 2**30 + 12345)

    monkeypatch.setattr(torch, "empty", poisoned)


@pytest.fixture(autouse=True)
def few_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Interpreted programs cost milliseconds each, so that tiles are shared out among few."""
    if launch.INTERPRETED:
        monkeypatch.setattr(launch, "PROGRAMS", 16)
        monkeypatch.setattr(launch, "SCORE_CHUNK", 128)
        monkeypatch.setattr(launch, "EMIT_CHUNK", 128)


def random_logits(n: int, case: Case, generator: torch.Generator) -> torch.Tensor:
    wide = 2.5 * torch.randn((n, case.vocabulary + case.padding), generator=generator)
    return wide.to(case.dtype).to(DEVICE)[:, : case.vocabulary]


def step(case: Case, seed: int, closeness: float = 0.7) -> tuple[Draft, LogitRows, Streams]:
    """A batch as a decoder hands it over: the draft's normalisers known, the target's only where tokens are cut off."""
    generator = torch.Generator().manual_seed(seed)
    batch, n, width = len(case.counts), sum(case.counts), max(case.counts) + case.slack
    params = RowParams.of(case.params, DEVICE)
    counts = torch.tensor(case.counts, device=DEVICE)
    requests = torch.arange(batch, device=DEVICE)
    # Seeds of more than 32 bits, and a position for each request.
    streams = Streams((requests + 1000 * seed) * (2**40 + 1), 17 + 3 * requests, width + 1)
    owner = requests.repeat_interleave(counts)
    offset = torch.cat([torch.arange(count) for count in case.counts]).to(DEVICE)
    q_logits, p_logits = random_logits(n, case, generator), random_logits(n + batch, case, generator)
    noise = torch.randn((n, case.vocabulary), generator=generator).to(DEVICE)
    p_logits[torch.arange(n, device=DEVICE) + owner] = (q_logits + closeness * noise).to(case.dtype)
    uniforms = streams.uniform(Stream.DRAFT)[owner, offset]
    of_q, of_p = owner, requests.repeat_interleave(counts + 1)
    if case.by_row:
        of_q, of_p = (torch.arange(start, start + m, device=DEVICE) for start, m in ((0, n), (2, n + batch)))
    token_ids, q = draw(logit_rows(q_logits, params.select(of_q % len(case.params))), uniforms)
    target = logit_rows(p_logits, params.select(of_p % len(case.params)))
    return Draft(token_ids, None if case.one_hot else q, counts, width), target, streams


def assert_agrees(rule: str, arguments: tuple[Draft, LogitRows, Streams], got: Verification) -> None:
    expected = TWINS[rule].verify(*arguments)
    differences = classify(rule, *arguments, expected, got)
    assert len(differences.requests) == 0, f"requests {differences.requests.tolist()}, excess {differences.excess}"
    assert torch.equal(got.token_ids, expected.token_ids)
    assert torch.equal(got.num_accepted, expected.num_accepted)


@RULES
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_agrees_with_its_twin(case, block):
    """Seeds are fixed, and none of these draws lies within rounding of a threshold."""
    verifier = FusedVerifier(block=block)
    for seed in range((1 if case.vocabulary > 10_000 else 2) if launch.INTERPRETED else 3):
        arguments = step(case, seed)
        assert_agrees(verifier.rule, arguments, verifier.verify(*arguments))


@on_a_gpu
@RULES
def test_a_batch_larger_than_a_gpu_holds_at_once(block):
    """Emitting programs wait for scoring ones that start while others end, and chunks hold several tiles."""
    generator = torch.Generator().manual_seed(0)
    counts = torch.randint(0, 5, (1500,), generator=generator).tolist()
    verifier, arguments = FusedVerifier(block=block), step(Case(counts, 4099, "", [WARM, GREEDY]), 0)
    expected = TWINS[verifier.rule].verify(*arguments)
    for _ in range(3):
        differences = classify(verifier.rule, *arguments, expected, verifier.verify(*arguments))
        assert len(differences.wrong) == 0
        assert len(differences.requests) < 5  # so many draws next to a step of a cumulative sum are not expected


@RULES
def test_the_kernel_ran(block, monkeypatch):
    """One launch a batch, and no twin in its place."""
    launches = []
    kernel = launch.verify_kernel

    class Spy:
        def __getitem__(self, grid):
            launches.append(grid)
            return kernel[grid]

    monkeypatch.setattr(launch, "verify_kernel", Spy())
    FusedVerifier(block=block).verify(*step(CASES["mixed"], 0))
    assert len(launches) == 1


@RULES
def test_tokens_do_not_depend_on_the_grid(block, monkeypatch):
    """Neither on how tiles are shared out nor on how far emitting lags behind scoring."""
    arguments = step(CASES["mixed"], 1)
    results = []
    for programs, chunk, lag in ((1, 64, 1), (10_000, 64, 1), (4, 2, 10_000), (1, 1, 3)):
        monkeypatch.setattr(launch, "PROGRAMS", programs)
        monkeypatch.setattr(launch, "SCORE_CHUNK", chunk)
        monkeypatch.setattr(launch, "EMIT_CHUNK", chunk)
        monkeypatch.setattr(launch, "LAG", lag)
        results.append(FusedVerifier(block=block).verify(*arguments).token_ids)
    assert all(torch.equal(result, results[0]) for result in results)


@RULES
def test_a_workspace_serves_one_batch_after_another(block):
    """Counters are 0 again after a launch, and what an earlier, larger batch left does not matter."""
    verifier = FusedVerifier(block=block)
    for name in ("ragged", "mixed", "tiny", "long", "one request", "mixed"):
        arguments = step(CASES[name], 4)
        assert_agrees(verifier.rule, arguments, verifier.verify(*arguments))


@RULES
def test_a_drafted_token_far_below_the_largest_logit(block):
    """Sums are taken relative to the drafted token's logit; where that overflows, they are taken again."""
    draft, target, streams = step(CASES["two tiles"], 2)
    rows = torch.arange(len(draft.token_ids), device=DEVICE)
    for shift in (-90.0, -300.0, -torch.inf):
        logits = target.logits.clone()
        logits[rows + draft.request_of_row, draft.token_ids] = shift
        changed = LogitRows(logits, target.temperature, target.cutoff, None)
        got = FusedVerifier(block=block).verify(draft, changed, streams)
        assert_agrees("block" if block else "token", (draft, changed, streams), got)


@RULES
def test_a_forbidden_draft_beside_a_tile_without_tokens(block):
    """As constraints leave a row: -inf over whole tiles, and at the drafted token that sums are taken relative to."""
    draft, target, streams = step(CASES["two tiles"], 2)
    rows = torch.arange(len(draft.token_ids), device=DEVICE) + draft.request_of_row
    for forbidden in (slice(2048, None), slice(0, 2048)):
        logits = target.logits.clone()
        logits[:, forbidden] = -torch.inf
        logits[rows, draft.token_ids] = -torch.inf
        changed = LogitRows(logits, target.temperature, target.cutoff, None)
        got = FusedVerifier(block=block).verify(draft, changed, streams)
        assert_agrees("block" if block else "token", (draft, changed, streams), got)
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
    q = LogitRows(draft.rows.logits, draft.rows.temperature, draft.rows.cutoff, None)
    arguments = Draft(draft.token_ids, q, draft.num_draft_tokens, draft.max_draft_tokens), target, streams
    assert_agrees("block" if block else "token", arguments, FusedVerifier(block=block).verify(*arguments))


def far_rows(n: int, vocabulary: int, columns: int) -> tuple[torch.Tensor, ...]:
    """Matrices [n, vocabulary] side by side, float16, whose row 2 and later begin beyond 2^31 elements."""
    stride = 2**30 + 64
    size = (n - 1) * stride + columns * vocabulary
    # NumPy's memory takes no place until it is written.
    held = torch.from_numpy(np.empty(size, np.float16)) if launch.INTERPRETED else torch.empty(size, dtype=torch.half)
    held = held.to(DEVICE)
    return tuple(held.as_strided((n, vocabulary), (stride, 1), column * vocabulary) for column in range(columns))


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
        far_p = LogitRows(p_far, target.temperature, target.cutoff, None)
        far_q = LogitRows(q_far[:3], draft.rows.temperature, draft.rows.cutoff, draft.rows.log_normalizer)
        for block in (False, True):
            arguments = Draft(draft.token_ids, far_q, draft.num_draft_tokens, 3), far_p, streams
            got = FusedVerifier(block=block).verify(*arguments)
            assert_agrees("block" if block else "token", arguments, got)
            reached.add(int(got.num_accepted[0]))
    assert {2, 3} <= reached  # tokens were recovered from row 2, and drawn from the bonus row
    u = torch.full((4,), 0.4, dtype=torch.float64, device=DEVICE)
    near = LogitRows(target.logits, target.temperature, target.cutoff, None)
    for one, two in zip(launch_rows.sample(far_p, u), launch_rows.sample(near, u), strict=True):
        assert torch.equal(one, two)
    params = RowParams.of([SamplingParams(top_k=5), SamplingParams(top_p=0.8)] * 2, DEVICE)
    given = (params.temperature, params.top_k, params.top_p, params.min_p)
    for one, two in zip(
        launch_rows.find_cutoffs(p_far, *given), launch_rows.find_cutoffs(target.logits, *given), strict=True
    ):
        assert torch.equal(one, two)


@RULES
def test_a_residual_without_mass_is_drawn_from_p(block):
    """As rounding could leave it: here q is everywhere above p, by a normaliser that is too small."""
    draft, target, streams = step(CASES["two tiles"], 3)
    owner = torch.arange(len(draft.token_ids), device=DEVICE) + draft.request_of_row
    q = LogitRows(
        target.logits[owner], draft.rows.temperature, draft.rows.cutoff, target.select(owner).normalizer - 1.0
    )
    changed = Draft(draft.token_ids, q, draft.num_draft_tokens, draft.max_draft_tokens)
    got = FusedVerifier(block=block).verify(changed, target, streams)
    assert_agrees("block" if block else "token", (changed, target, streams), got)
    assert (got.num_accepted < draft.num_draft_tokens).any()


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
        got = FusedVerifier(block=block).verify(
            draft, LogitRows(logits, target.temperature, target.cutoff, None), streams
        )
        assert got.token_ids[[0, 2], got.num_accepted[[0, 2]]].tolist() == [PADDING, PADDING]
        assert torch.equal(got.token_ids[1], sound.token_ids[1])


def test_a_bad_draft_row_yields_no_token():
    draft, target, streams = step(Case([2, 2], 2100, ""), 6)
    normalizer = draft.rows.normalizer.clone()
    normalizer[2] = torch.nan
    q = LogitRows(draft.rows.logits, draft.rows.temperature, draft.rows.cutoff, normalizer)
    for block in (False, True):
        got = FusedVerifier(block=block).verify(
            Draft(draft.token_ids, q, draft.num_draft_tokens, draft.max_draft_tokens), target, streams
        )
        assert got.token_ids[1, got.num_accepted[1]] == PADDING


def test_arguments_that_the_kernel_cannot_take():
    draft, target, streams = step(CASES["tiny"], 0)
    verifier = FusedVerifier()

    def refused(match: str, *, p: LogitRows = target, d: Draft = draft, s: Streams = streams) -> None:
        with pytest.raises(ArgumentError, match=match):
            verifier.verify(d, p, s)

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
        FusedVerifier().verify(draft, LogitRows(logits, target.temperature, target.cutoff, None), streams)
    monkeypatch.setenv("SPECBENCH_DEBUG", "0")
    result = FusedVerifier().verify(outside, target, streams)
    assert result.num_accepted[1] == 0  # the token outside is refused, and another is drawn
    assert 0 <= result.token_ids[1, 0] < 7


# --- Cutoffs and samples ---

SAMPLERS = {
    "off": SamplingParams(),
    "greedy": SamplingParams(temperature=0.0),
    "top-k": SamplingParams(temperature=0.7, top_k=5),
    "top-k 1": SamplingParams(top_k=1),
    "top-k beyond the candidates": SamplingParams(top_k=3000),
    "top-k beyond the vocabulary": SamplingParams(top_k=10**6),
    "top-p": SamplingParams(temperature=0.9, top_p=0.8),
    "top-p of one token": SamplingParams(top_p=1e-6),
    "top-p of most tokens": SamplingParams(temperature=5.0, top_p=0.99),
    "min-p": SamplingParams(min_p=0.1),
    "min-p of most tokens": SamplingParams(min_p=1e-9),
    "all three": SamplingParams(temperature=1.3, top_k=6, top_p=0.9, min_p=0.05),
    "top-k 300 then top-p": SamplingParams(top_k=300, top_p=0.95),
    "min-p above top-k": SamplingParams(top_k=2000, min_p=0.9),
}


def cutoff_case(vocabulary: int, dtype: torch.dtype) -> tuple[torch.Tensor, RowParams, RowParams]:
    generator = torch.Generator().manual_seed(vocabulary)
    logits = (3 * torch.randn((len(SAMPLERS), vocabulary), generator=generator)).to(dtype)
    logits[:, ::97] = -torch.inf  # forbidden tokens, as constraints leave them
    given = list(SAMPLERS.values())
    return logits.to(DEVICE), RowParams.of(given, DEVICE), RowParams.of(given)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("vocabulary", [7, 1000, 4099, pytest.param(128_256, marks=on_a_gpu)])
def test_cutoffs_keep_what_sorting_keeps(vocabulary, dtype):
    """The same tokens, ties included, and a normaliser within float32 rounding."""
    logits, params, on_host = cutoff_case(vocabulary, dtype)
    cutoff, normalizer = launch_rows.find_cutoffs(logits, params.temperature, params.top_k, params.top_p, params.min_p)
    expected, expected_normalizer = sorted_cutoffs(logits.cpu(), on_host)
    kept, wanted = (logits.cpu().double() >= c.cpu()[:, None] for c in (cutoff, expected))
    forbidden = logits.cpu() == -torch.inf  # of no weight, kept or not
    for name, ours, theirs in zip(SAMPLERS, kept & ~forbidden, wanted & ~forbidden, strict=True):
        assert torch.equal(ours, theirs), f"{name}: {int(ours.sum())} tokens kept, {int(theirs.sum())} by sorting"
    torch.testing.assert_close(normalizer.cpu(), expected_normalizer, rtol=0, atol=2e-6)


def test_cutoffs_of_equal_logits_and_bad_rows():
    given = [SamplingParams(top_k=3), SamplingParams(top_p=0.5), SamplingParams(top_k=2, top_p=0.5)]
    params = RowParams.of([*given, *given], DEVICE)
    logits = torch.zeros((6, 500), device=DEVICE)
    logits[3:, 7] = torch.nan
    cutoff, normalizer = launch_rows.find_cutoffs(logits, params.temperature, params.top_k, params.top_p, params.min_p)
    assert cutoff[:3].tolist() == [0.0] * 3  # all are tied with the last kept
    assert not normalizer[3:].isfinite().any()


@pytest.mark.parametrize("order", ["rising", "falling", "tied"])
def test_cutoffs_among_more_groups_than_are_gathered(order):
    """128 groups of tokens, of which 64 are looked at: the last ones, the first ones, none."""
    given = [SamplingParams(top_k=5), SamplingParams(top_p=0.7), SamplingParams(top_k=70, top_p=0.9)]
    rising = (torch.arange(8192) - 8191) / 8
    logits = {"rising": rising, "falling": rising.flip(0), "tied": 0 * rising}[order].expand(3, -1).contiguous()
    params, on_host = RowParams.of(given, DEVICE), RowParams.of(given)
    found = launch_rows.find_cutoffs(logits.to(DEVICE), params.temperature, params.top_k, params.top_p, params.min_p)
    cutoff, normalizer = sorted_cutoffs(logits, on_host)
    assert torch.equal(found[0].cpu(), cutoff)
    torch.testing.assert_close(found[1].cpu(), normalizer, rtol=0, atol=2e-6)


@pytest.mark.parametrize("vocabulary", [7, 1000, 4099, pytest.param(128_256, marks=on_a_gpu)])
def test_samples_are_inverse_cdf_samples(vocabulary):
    logits, params, on_host = cutoff_case(vocabulary, torch.float32)
    expected = LogitRows(logits.cpu(), on_host.temperature, *sorted_cutoffs(logits.cpu(), on_host))
    rows = LogitRows(logits, params.temperature, expected.cutoff.to(DEVICE), None)
    workspace = launch.Workspace()
    for seed in range(3):
        u = torch.rand(len(SAMPLERS), dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        tokens, normalizer = launch_rows.sample(rows, u.to(DEVICE), workspace)
        assert torch.equal(tokens.cpu(), inverse_cdf(expected.probs(), u))
        random = on_host.temperature > 0
        torch.testing.assert_close(normalizer.cpu()[random], expected.normalizer[random], rtol=0, atol=2e-6)
        assert (normalizer.cpu()[~random] == 0).all()


@pytest.mark.parametrize("rest", [0.0, -torch.inf], ids=["finite", "forbidden"])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf], ids=["NaN", "inf"])
def test_samples_of_bad_rows(bad, rest):
    """A bad logit shows too where it is the only one of its tile that is not -inf."""
    for place in (5, 2999):
        logits = torch.zeros((2, 3000), device=DEVICE)
        logits[:, place // 2048 * 2048 : place // 2048 * 2048 + 2048] = rest
        logits[:, place] = bad
        params = RowParams.of([PLAIN, GREEDY], DEVICE)
        u = torch.full((2,), 0.5, dtype=torch.float64, device=DEVICE)
        tokens, normalizer = launch_rows.sample(logit_rows(logits, params), u)
        assert tokens.tolist() == [PADDING, PADDING]
        assert not normalizer.isfinite().any()
        truncating = RowParams.of([SamplingParams(top_k=3), SamplingParams(top_p=0.5)], DEVICE)
        _, normalizer = launch_rows.find_cutoffs(
            logits, truncating.temperature, truncating.top_k, truncating.top_p, truncating.min_p
        )
        assert not normalizer.isfinite().any()


# --- Only on a GPU ---


@on_a_gpu
@RULES
def test_a_graph_replays_with_new_inputs(block):
    verifier = FusedVerifier(block=block)
    first, second = step(CASES["ragged"], 1), step(CASES["ragged"], 2)
    expected = verifier.verify(*second)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = verifier.verify(*first)
    for held, new in zip(first, second, strict=True):
        for name in ("logits", "token_ids", "num_draft_tokens", "seeds", "positions", "log_normalizer"):
            for mine, theirs in ((held, new), (getattr(held, "rows", None), getattr(new, "rows", None))):
                if isinstance(getattr(mine, name, None), torch.Tensor):
                    getattr(mine, name).copy_(getattr(theirs, name))
    for _ in range(3):
        graph.replay()
        assert torch.equal(out.token_ids, expected.token_ids)
        assert torch.equal(out.num_accepted, expected.num_accepted)


@on_a_gpu
def test_a_capture_without_memory_is_refused():
    arguments = step(CASES["ragged"], 1)
    FusedVerifier().verify(*arguments)  # compiled
    with pytest.raises(ArgumentError, match="workspace"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        FusedVerifier().verify(*arguments)
    torch.cuda.synchronize()


@on_a_gpu
def test_batch_and_gamma_do_not_compile_again():
    verifier = FusedVerifier()
    verifier.verify(*step(Case([4, 4], 2100, ""), 0))
    compiled = launch.verify_kernel.device_caches[torch.cuda.current_device()][0]
    before = len(compiled)
    for counts in ([1], [2] * 16, [3, 0, 1], [8] * 5, [1] * 17):
        verifier.verify(*step(Case(counts, 2100, ""), 0))
    assert len(compiled) == before
