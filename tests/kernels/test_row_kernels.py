"""The kernels that look at rows one by one, cutoffs and samples, against sorting and the plain inverse CDF.

Uninitialised memory is poisoned throughout: what a kernel does not write, or reads before it is written, shows.
"""

import pytest
import torch

from specbench.core.rng import Stream, Streams
from specbench.core.types import PADDING, LogitRows
from specbench.kernels import launch, launch_rows
from specbench.sampling import RowParams, SamplingParams, inverse_cdf, logit_rows
from specbench.sampling.rows import sorted_cutoffs
from tests.helpers.kernel_cases import DEVICE, GREEDY, PLAIN, cutoffs, on_a_gpu

pytestmark = pytest.mark.usefixtures("poison", "few_programs")
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
    samplings = list(SAMPLERS.values())
    return logits.to(DEVICE), RowParams.of(samplings, DEVICE), RowParams.of(samplings)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("vocabulary", [7, 1000, 4099, pytest.param(128_256, marks=on_a_gpu)])
def test_cutoffs_keep_what_sorting_keeps(vocabulary, dtype):
    """The same tokens, ties included, and a normaliser within float32 rounding."""
    logits, params, on_host = cutoff_case(vocabulary, dtype)
    cutoff, normalizer = cutoffs(logits, params)
    expected, expected_normalizer = sorted_cutoffs(logits.cpu(), on_host)
    kept, expected_kept = (logits.cpu().double() >= c.cpu()[:, None] for c in (cutoff, expected))
    forbidden = logits.cpu() == -torch.inf  # of no weight, kept or not
    for name, ours, theirs in zip(SAMPLERS, kept & ~forbidden, expected_kept & ~forbidden, strict=True):
        assert torch.equal(ours, theirs), f"{name}: {int(ours.sum())} tokens kept, {int(theirs.sum())} by sorting"
    torch.testing.assert_close(normalizer.cpu(), expected_normalizer, rtol=0, atol=2e-6)


def test_cutoffs_of_equal_logits_and_bad_rows():
    samplings = [SamplingParams(top_k=3), SamplingParams(top_p=0.5), SamplingParams(top_k=2, top_p=0.5)]
    params = RowParams.of([*samplings, *samplings], DEVICE)
    logits = torch.zeros((6, 500), device=DEVICE)
    logits[3:, 7] = torch.nan
    cutoff, normalizer = cutoffs(logits, params)
    assert cutoff[:3].tolist() == [0.0] * 3  # all are tied with the last kept
    assert not normalizer[3:].isfinite().any()


@pytest.mark.parametrize("order", ["rising", "falling", "tied"])
def test_cutoffs_among_more_groups_than_are_gathered(order):
    """128 groups of tokens, of which 64 are looked at: the last ones, the first ones, none."""
    samplings = [SamplingParams(top_k=5), SamplingParams(top_p=0.7), SamplingParams(top_k=70, top_p=0.9)]
    rising = (torch.arange(8192) - 8191) / 8
    logits = {"rising": rising, "falling": rising.flip(0), "tied": 0 * rising}[order].expand(3, -1).contiguous()
    params, on_host = RowParams.of(samplings, DEVICE), RowParams.of(samplings)
    result = cutoffs(logits.to(DEVICE), params)
    cutoff, normalizer = sorted_cutoffs(logits, on_host)
    assert torch.equal(result[0].cpu(), cutoff)
    torch.testing.assert_close(result[1].cpu(), normalizer, rtol=0, atol=2e-6)


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


def test_a_row_of_banned_tokens_has_no_sample():
    params = RowParams.of([PLAIN, GREEDY], DEVICE)
    logits = torch.full((2, 3000), -torch.inf, device=DEVICE)
    u = torch.full((2,), 0.5, dtype=torch.float64, device=DEVICE)
    tokens, normalizer = launch_rows.sample(logit_rows(logits, params), u)
    assert tokens.tolist() == [PADDING, PADDING]
    assert not normalizer.isfinite().any()


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
        _, normalizer = cutoffs(logits, truncating)
        assert not normalizer.isfinite().any()


@pytest.mark.parametrize(("batch", "width"), [(1, 1), (3, 5), (36, 9)])
def test_uniforms_are_those_of_the_streams(batch, width):
    """Bit for bit: seeds and positions of one word and of more, and such as verifiers refuse."""
    bounds = torch.tensor([-(2**63), -(2**32), -1, 0, 2**32 - 1, 5 * 2**40 + 7])
    seeds, positions = torch.cartesian_prod(bounds, bounds.flip(0))[-batch:].T
    made = launch_rows.uniforms(seeds.to(DEVICE), positions.to(DEVICE), width).cpu()
    expected = Streams(seeds, positions, width)
    for stream in Stream:
        assert torch.equal(made[stream], expected.uniform(stream))
    last = torch.tensor([batch - 1])
    uniforms = Streams(seeds, positions, width, made).select(last).uniform(Stream.EMIT)
    assert torch.equal(uniforms, made[Stream.EMIT, last])
