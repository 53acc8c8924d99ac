"""The numbers that the kernels compute with, one device function at a time: where comparing tokens alone is too coarse.

An error of 1e-6 in a probability changes a token in a million, so that agreement of tokens would not show it.
"""

import importlib
import math
from pkgutil import iter_modules

import pytest
import torch
import triton
import triton.language as tl

from specbench import kernels
from specbench.kernels import launch, launch_rows
from specbench.kernels import tiles as on_tiles
from specbench.kernels.layout import Block, extent
from specbench.sampling import RowParams, SamplingParams, logit_rows
from tests.helpers.kernel_cases import DEVICE

LARGEST_BELOW_1 = 1 - 2.0**-53  # also the largest uniform of Streams


@triton.jit
def probs_kernel(logits, temperatures, normalizers, out, N: tl.constexpr):
    row, i = tl.program_id(0), tl.arange(0, N)
    form = on_tiles.exp2_form(tl.load(temperatures + row), tl.load(normalizers + row))
    power = on_tiles.exp2(tl.fma(tl.load(logits + row * N + i), form[0], -form[1]))
    tl.store(out + row * N + i, power.to(tl.float64) * form[2])


def test_probabilities_of_a_form_are_exact_to_float32():
    """Also of large logits at low temperatures, where a scale rounded to float32 is off by 1e-5 in the exponent.

    The likely tokens' logits are 32, since the interpreter rounds a product before it adds, and this one is exact.
    """
    temperature = torch.tensor([0.3, 0.7, 0.8, 1.0, 1.3, 1.9], dtype=torch.float64)
    logits = 20 * torch.rand((len(temperature), 64), generator=torch.Generator().manual_seed(0))
    logits[:, :5] = 32.0
    scaled = logits.double() / temperature[:, None]
    normalizer = scaled.logsumexp(dim=1)
    got = torch.full(scaled.shape, torch.nan, dtype=torch.float64, device=DEVICE)
    launch.run(
        probs_kernel, len(logits),
        logits.to(DEVICE), temperature.to(DEVICE), normalizer.to(DEVICE), got, N=64,
    )  # fmt: skip
    expected = (scaled - normalizer[:, None]).exp()
    assert expected.sum().item() == pytest.approx(len(logits))
    likely = expected > 0.01  # the form is exact where the mass is
    assert likely.sum() == 5 * len(logits)
    assert ((got.cpu() / expected - 1).abs()[likely] < 8e-7).all()


@triton.jit(do_not_specialize=["batch", "gamma", "n"])
def extent_kernel(block, requests, out, batch, gamma, n, PADDED: tl.constexpr):
    request = tl.load(requests + tl.program_id(0))
    drafted, first = extent(block, request, batch, gamma, n, PADDED)
    tl.store(out + 2 * tl.program_id(0), drafted)
    tl.store(out + 2 * tl.program_id(0) + 1, first)


@pytest.mark.parametrize("counts", ["even", "ragged", "wild", "wild, of few tokens", "wild, padded"])
def test_rows_of_a_request_follow_those_of_hundreds_before(counts):
    """A ragged batch's counts are added up 256 at a time, wild ones as the most or the fewest that there can be."""
    ragged = torch.randint(0, 5, (1000,), generator=torch.Generator().manual_seed(0)).to(DEVICE)
    wild = ragged.clone()
    wild[::7], wild[1::5], wild[2::5] = -3, 9, 2**62
    lengths = {"even": torch.full_like(ragged, 4), "ragged": ragged}.get(counts, wild)
    sound = lengths.clamp(0, 4)
    n = int(sound.sum()) if counts != "wild, of few tokens" else 1200  # the others' turn comes when none is left
    requests = torch.tensor([0, 1, 255, 256, 257, 511, 512, 513, 999], dtype=torch.int32, device=DEVICE)
    got = torch.zeros((len(requests), 2), dtype=torch.int64, device=DEVICE)
    padded = counts == "wild, padded"
    block = Block(lengths, lengths, lengths, lengths)
    launch.run(extent_kernel, len(requests), block, requests, got, 1000, 4, 4000 if padded else n, PADDED=padded)
    end = sound.cumsum(0).clamp(max=n)
    first = torch.cat([end.new_zeros(1), end[:-1]])
    drafted = end - first
    if padded:
        drafted, first = sound, 4 * torch.arange(1000, device=DEVICE)
    assert torch.equal(got, torch.stack([drafted, first], dim=1)[requests.long()])


def sampled(logits: torch.Tensor, u: float) -> int:
    """A token of one row at temperature 1."""
    rows = logit_rows(logits[None].to(DEVICE), RowParams.of([SamplingParams()], DEVICE))
    return int(launch_rows.sample(rows, torch.tensor([u], dtype=torch.float64, device=DEVICE))[0])


@pytest.mark.parametrize("index", [0, 1, 63, 64, 65, 2047, 2048, 2049, 4095])
def test_a_uniform_on_a_step_of_the_cumulative_sum_belongs_to_the_next_token(index):
    """Equal logits, so that every sum is exact, and steps at the edges of groups and tiles."""
    assert sampled(torch.zeros(4096), index / 4096) == index


@pytest.mark.parametrize("seed", range(8))
def test_a_uniform_next_to_1_draws_the_last_token_with_mass(seed):
    """Sums of float32 weights may then fall short of what they add up to, and no place's cumulative mass exceed it."""
    logits = torch.rand(4099, generator=torch.Generator().manual_seed(seed))
    last = 3000 + 17 * seed
    logits[last + 1 :] = -torch.inf
    assert sampled(logits, LARGEST_BELOW_1) == last


def test_a_tail_below_the_resolution_of_float32_is_reached():
    """Tokens of probability 2^-28 in later tiles, beside one of probability next to 1."""
    logits = torch.full((3 * 2048,), -torch.inf)
    logits[3], logits[3000], logits[5000] = 0.0, -28 * math.log(2), -28 * math.log(2)
    assert [sampled(logits, 1 - tail * 2.0**-28) for tail in (2.5, 1.5, 0.5)] == [3, 3000, 5000]


def test_no_kernel_has_an_argument_by_a_name_that_triton_uses_itself():
    """Triton's launcher on a GPU assigns these names before it reads the arguments; its interpreter has no launcher."""
    modules = (importlib.import_module(f"{kernels.__name__}.{info.name}") for info in iter_modules(kernels.__path__))
    functions = {value for module in modules for value in vars(module).values() if hasattr(value, "arg_names")}
    assert len(functions) > 20
    for function in functions:
        assert not {"params", "specialization", "options"} & set(function.arg_names), function
