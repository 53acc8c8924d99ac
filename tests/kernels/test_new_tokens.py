"""Attention that turns new queries and keys and writes the cache too, against PyTorch's in float64.

Uninitialised memory is poisoned throughout: what a kernel does not write, or reads before it is written, shows.
"""

from dataclasses import dataclass

import pytest
import torch
from torch.nn.functional import rms_norm, scaled_dot_product_attention

from specbench.core.errors import ArgumentError
from specbench.kernels import launch, launch_attention
from specbench.kernels.launch_attention import Turning, attend_new
from tests.helpers.kernel_cases import DEVICE, on_a_gpu
from tests.interpreted.interpreter import watched

pytestmark = pytest.mark.usefixtures("poison")
EPSILON = 1e-5
# Relative to the result's size: sums in another order in float32; weights and outputs rounded to 16 bits.
TOLERANCE = {torch.float32: 3e-6, torch.float16: 2e-3, torch.bfloat16: 1.5e-2}


@dataclass(frozen=True)
class Case:
    """A regime and why it is one. Lengths are what was cached before the n new tokens."""

    lengths: tuple[int, ...]
    n: int
    visible: int
    reason: str
    heads: int = 4
    kv_heads: int = 2
    dim: int = 32
    dtype: torch.dtype = torch.float32
    norms: bool = False
    split: int | None = None


CASES = {
    "nothing cached": Case((0,), 1, 64, "a request that sees itself alone"),
    "one token": Case((129, 60, 0), 1, 192, "drafting, in splits that are read ahead"),
    "one request": Case((45,), 5, 96, "new tokens in two splits of the fewest keys, by a few warps"),
    "five tokens": Case((50, 33, 0), 5, 64, "scoring, a row a program", 2, 1),
    "splits": Case((300, 5, 126), 3, 320, "new tokens that begin in one split and end in the next", split=128),
    "splits that are read ahead": Case((300, 5, 126), 3, 320, "as above, each split one tile", split=64),
    "splits of several tiles": Case((520, 300), 2, 640, "no tile is read ahead", split=512),
    "no groups": Case((90, 17), 2, 128, "rows are queries", heads=2),
    "eight heads a group": Case((90, 17), 5, 128, "40 rows in lanes for 64", 8, 1),
    "several tiles of rows": Case((60, 3), 45, 128, "programs that write the same tokens"),
    "norms": Case((70, 9), 3, 128, "heads that are normed before they are turned", norms=True),
    "wide": Case((70, 250), 2, 256, "wide heads, in tiles of fewer keys", 4, 2, 128),
    "odd": Case((70, 9), 2, 128, "heads that fill no power of two", 4, 2, 80),
    "narrow": Case((70,), 2, 128, "heads narrower than the least that a product takes", 4, 2, 8),
    "bf16": Case((129, 44), 5, 192, "the dtype of GPUs: one split, read ahead", dtype=torch.bfloat16),
    "bf16, splits": Case((300, 44), 5, 320, "the dtype of GPUs", dtype=torch.bfloat16, split=128),
    "fp16, unsplit": Case((90, 33), 2, 128, "small tiles of many programs", dtype=torch.float16, split=1024),
    "fp16": Case((129, 44), 1, 192, "the third dtype", dtype=torch.float16),
}


def made(case: Case, seed: int = 0):
    """Projections, cache, lengths and tables as a layer has them."""
    generator = torch.Generator().manual_seed(seed)

    def randn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(DEVICE, case.dtype)

    batch = len(case.lengths)
    new = randn(batch, case.n, (case.heads + 2 * case.kv_heads) * case.dim)
    keys, values = (randn(batch, case.kv_heads, case.visible, case.dim) for _ in range(2))
    angles = (torch.arange(case.visible)[:, None] * torch.rand(case.dim // 2, generator=generator)).repeat(1, 2)
    cos, sin = (table.to(DEVICE, case.dtype) for table in (angles.cos(), angles.sin()))
    norms = [randn(case.dim), randn(case.dim)] if case.norms else [None, None]
    return new, keys, values, torch.tensor(case.lengths, device=DEVICE), Turning(cos, sin, *norms, EPSILON)


def expected(case: Case, new, keys, values, turning):
    """The results of all requests in float64, and the new keys and values of each."""
    results, written = [], []
    for b, length in enumerate(case.lengths):
        heads = new[b].view(case.n, -1, case.dim).transpose(0, 1).double()
        query, key, value = heads.split([case.heads, case.kv_heads, case.kv_heads])
        if case.norms:
            query, key = (
                rms_norm(states, (case.dim,), norm.double(), EPSILON)
                for states, norm in ((query, turning.q_norm), (key, turning.k_norm))
            )
        cos, sin = (table[length : length + case.n].double() for table in (turning.cos, turning.sin))
        query, key = (
            states * cos + torch.cat([-states[..., case.dim // 2 :], states[..., : case.dim // 2]], dim=-1) * sin
            for states in (query, key)
        )
        whole = [
            torch.cat([cached[b, :, :length].double(), states], dim=1)
            for cached, states in ((keys, key), (values, value))
        ]
        seen = torch.ones(case.n, length + case.n, dtype=torch.bool, device=DEVICE).tril(length)
        attended = scaled_dot_product_attention(query, *whole, attn_mask=seen, scale=0.2, enable_gqa=True)
        results.append(attended.transpose(0, 1).flatten(1))
        written.append((key, value))
    return torch.stack(results), written


@pytest.mark.cases(8)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_attends_and_writes(case, monkeypatch):
    if launch.INTERPRETED:
        monkeypatch.setattr(launch_attention, "run", watched(launch_attention.run))
    new, keys, values, lengths, turning = made(case)
    exact, written = expected(case, new, keys, values, turning)
    before = keys.clone(), values.clone()
    result = attend_new(new, keys, values, lengths, turning, 0.2, case.split)
    tolerance = TOLERANCE[case.dtype]
    assert float((result.double() - exact).norm() / exact.norm()) < tolerance
    for b, length in enumerate(case.lengths):
        for states, old, right in zip((keys, values), before, written[b], strict=True):
            torch.testing.assert_close(
                states[b, :, length : length + case.n].double(), right, rtol=tolerance, atol=1e-5
            )
            assert torch.equal(states[b, :, :length], old[b, :, :length])
            assert torch.equal(states[b, :, length + case.n :], old[b, :, length + case.n :])


@pytest.mark.cases(1)
@pytest.mark.parametrize("name", ["five tokens", "splits"])
def test_requests_have_rows_of_a_larger_cache(name):
    """The other rows are neither read nor written."""
    case = CASES[name]
    new, keys, values, lengths, turning = made(case)
    rows = torch.tensor([3, 0, 4], device=DEVICE)
    larger = [states.new_full((5, *states.shape[1:]), torch.nan) for states in (keys, values)]
    for whole, states in zip(larger, (keys, values), strict=True):
        whole[rows] = states
    result = attend_new(new, *larger, lengths, turning, 0.2, case.split, rows)
    assert torch.equal(result, attend_new(new, keys, values, lengths, turning, 0.2, case.split))
    for whole, states in zip(larger, (keys, values), strict=True):
        assert torch.equal(whole[rows], states)
        assert bool(whole[[1, 2]].isnan().all())


@pytest.mark.cases(1)
@pytest.mark.parametrize("name", ["five tokens", "splits that are read ahead", "splits"])
def test_what_lies_behind_a_request_is_not_read(name):
    """Rejected tokens may have left NaN there, and NaN times 0 is NaN."""
    new, keys, values, lengths, turning = made(CASES[name])
    result = attend_new(new, keys.clone(), values.clone(), lengths, turning, 0.2, CASES[name].split)
    for b, length in enumerate(CASES[name].lengths):
        keys[b, :, length:], values[b, :, length:] = torch.nan, torch.nan
    assert torch.equal(attend_new(new, keys, values, lengths, turning, 0.2, CASES[name].split), result)


@pytest.mark.cases(1)
@pytest.mark.parametrize("name", ["splits that are read ahead", "splits"])
def test_a_request_is_the_same_in_any_batch(name):
    new, keys, values, lengths, turning = made(CASES[name])
    together = attend_new(new, keys.clone(), values.clone(), lengths, turning, 0.2, CASES[name].split)
    for b in range(len(lengths)):
        one = (new[b : b + 1], keys[b : b + 1].clone(), values[b : b + 1].clone(), lengths[b : b + 1])
        assert torch.equal(attend_new(*one, turning, 0.2, CASES[name].split)[0], together[b])


def test_tokens_behind_the_memory_are_not_written(monkeypatch):
    """Lengths are not known to the host; whatever they are, no program leaves the tensors."""
    new, keys, values, lengths, turning = made(CASES["five tokens"])
    whole = [torch.cat([states, torch.full_like(states[:, :, :8], 7.0)], dim=2) for states in (keys, values)]
    before = keys.clone()
    lengths[0], lengths[1], lengths[2] = 62, 2**40, -(2**40)
    attend_new(new, *(states[:, :, :64] for states in whole), lengths, turning, 0.2)
    assert all((states[:, :, 64:] == 7).all() for states in whole)
    assert torch.equal(whole[0][1, :, :64], before[1])
    if launch.INTERPRETED:
        monkeypatch.setattr(launch_attention, "run", watched(launch_attention.run))
        attend_new(new, keys, values, lengths, turning, 0.2)


@on_a_gpu
def test_a_graph_replays_with_other_lengths():
    """Lengths and cache are read before the kernel in front has ended, and are those of the replay."""
    case = CASES["bf16"]
    new, keys, values, lengths, turning = made(case)
    source, graph = torch.empty_like(new), torch.cuda.CUDAGraph()
    attend_new(new, keys.clone(), values.clone(), lengths, turning, 0.2)
    with torch.cuda.graph(graph):
        source.copy_(new)
        out = attend_new(source, keys, values, lengths, turning, 0.2)
    for seed in range(1, 9):
        others = made(case, seed)
        for mine, theirs in zip((new, keys, values), others[:3], strict=True):
            mine.copy_(theirs)
        lengths.copy_(torch.tensor([seed * 17, seed], device=DEVICE))
        graph.replay()
        again = (others[1].clone(), others[2].clone(), lengths)
        assert torch.equal(out, attend_new(others[0], *again, turning, 0.2))


@pytest.mark.usefixtures("unchecked")  # of which shapes would be refused first
def test_arguments_that_the_kernel_cannot_take():
    new, keys, values, lengths, turning = made(CASES["norms"])
    cos, sin, norm = turning.cos, turning.sin, turning.q_norm
    for match, arguments in {
        r"new: 255 numbers": (new[..., :255].contiguous(), keys, values, lengths, turning),
        r"new: 256 numbers": (new, keys, values[..., :16], lengths, turning),
        r"lengths: torch.int64 \(1,\)": (new, keys, values, lengths[:1], turning),
        r"lengths: .* contiguous": (new, keys, values, lengths.repeat_interleave(2)[::2], turning),
        r"key: 3 rows for 2 requests": (
            new,
            keys[:1].repeat(3, 1, 1, 1),
            values[:1].repeat(3, 1, 1, 1),
            lengths,
            turning,
        ),
        r"turning: a table of shape \(9, 32\); \[128, 32\]": (new, keys, values, lengths, Turning(cos[:9], sin)),
        r"turning: norms of \[32\] numbers": (new, keys, values, lengths, Turning(cos, sin, norm)),
        r"query: torch.float64": (new.double(), keys.double(), values.double(), lengths, turning),
        r"split: 100": (new, keys, values, lengths, turning, 0.2, 100),
        r"cache_rows: torch.int64 \(1,\)": (new, keys, values, lengths, turning, 0.2, None, lengths[:1]),
    }.items():
        with pytest.raises(ArgumentError, match=f"^{match}"):
            attend_new(*(arguments if len(arguments) > 5 else (*arguments, 0.2)))
