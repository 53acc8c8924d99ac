"""Products of few rows against PyTorch's in float64, through the interpreter without a GPU and compiled with one.

Uninitialised memory is poisoned throughout: what a kernel does not write, or reads before it is written, shows.
"""

import pytest
import torch

from specbench.core.errors import ArgumentError
from specbench.kernels import launch, launch_product
from specbench.kernels.launch_product import (
    MOST_ROWS,
    Norm,
    Normed,
    counters,
    embed,
    linear,
    linear_to_norm,
    takes,
)
from specbench.kernels.product_tiles import FEW_OF_FLOAT32, FEW_ROWS, SHORT, Tiles
from tests.helpers.kernel_cases import DEVICE, on_a_gpu
from tests.interpreted.interpreter import watched

pytestmark = pytest.mark.usefixtures("poison")
SMALL, DEEP = Tiles(16, 128, 2, 4, 1), Tiles(16, 128, 2, 4, 4)
SHARED = Tiles(16, 128, 2, 4, 2, rows=16)
# Many outputs on a GPU; few, shared out in the same way, in the interpreter, which takes 20 s for many.
MANY = (22, 136, Tiles(4, 128, 2, 1, 1)) if launch_product.INTERPRETED else (1030, 136, None)
# What is asked, and why: rows, outputs, inputs, how it is shared out (None: as it comes).
CASES = {
    "one row": (1, 48, 256, None),
    "one row, ragged": (1, 37, 136, None),
    "one row, in parts": (1, 37, 520, DEEP),
    "rows": (5, 64, 256, None),
    "ragged": (3, 37, 136, None),
    "in parts": (5, 48, 520, DEEP),
    "a part without inputs": (2, 16, 136, DEEP),
    "sixteen rows": (16, 70, 128, SMALL),
    "more than one tile of rows has": (17, 40, 136, SMALL),
    "most rows": (MOST_ROWS, 70, 128, None),
    "rows shared out, in parts": (37, 40, 264, SHARED),
    "one output": (2, 1, 8, None),
    "a few": (FEW_OF_FLOAT32, 37, 520, None),
    "more than a few": (FEW_OF_FLOAT32 + 3, 37, 520, None),
    "most by themselves": (FEW_ROWS, 12, 264, None),
    "most by themselves, ragged": (FEW_ROWS - 3, 13, 136, None),
    "a few, as of many outputs": (2, *MANY),
    "parts by themselves": (2, 130, 1024, None),
}
NEAR = {torch.float32: 1e-6, torch.bfloat16: 2**-7, torch.float16: 2**-11}


def operands(rows, outputs, inputs, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    sizes = ((rows, inputs), (outputs, inputs), (outputs,))
    return [torch.randn(size, generator=generator).to(DEVICE, dtype) for size in sizes]


def apart(product, x, weight, bias):
    """From the product in float64, in parts of its largest output's rounding to the dtype."""
    exact = torch.nn.functional.linear(x.double(), weight.double(), None if bias is None else bias.double())
    return float((product.double() - exact).abs().max() / exact.abs().max()) / NEAR[x.dtype]


@pytest.fixture(autouse=True)
def _watched(monkeypatch):
    if launch.INTERPRETED:
        monkeypatch.setattr(launch_product, "run", watched(launch_product.run))


@pytest.mark.cases(14)
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("dtype", NEAR)
@pytest.mark.parametrize("name", CASES)
def test_is_the_product(name, dtype, biased):
    rows, outputs, inputs, shared = CASES[name]
    x, weight, bias = operands(rows, outputs, inputs, dtype)
    zeros, bias = counters(weight), bias if biased else None
    product = linear(x, weight, bias, zeros, shared=shared)
    assert product.shape == (rows, outputs)
    assert product.dtype == dtype
    assert apart(product, x, weight, bias) < 1
    assert not zeros.any(), "the next launch counts from 0"
    assert torch.equal(linear(x, weight, bias, zeros, shared=shared), product), "bit for bit each time"


@pytest.mark.cases(12)
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("dtype", NEAR)
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case[1] > 1])
def test_a_norm_between_two_products_and_a_gate(name, dtype, gated):
    """A sum that is normed and multiplied again, by a matrix or by a gate whose halves lie in one matrix."""
    rows, outputs, inputs, shared = CASES[name]
    size, outputs = 72 if inputs <= 512 else SHORT + 8, outputs + outputs % 2
    x, first, bias = operands(rows, size, inputs, dtype)
    residual, second, scales = [*operands(rows, outputs, size, dtype, seed=5)[:2], operands(1, 1, size, dtype)[0][0]]
    first, second = first / inputs**0.5, second / size**0.5
    zeros, norm = (counters(first), counters(second)), Norm(scales, 1e-5)

    def chain():
        state = linear_to_norm(x, first, bias, zeros[0], shared, residual=residual, norm=norm)
        return state, linear(state, second, None, zeros[1], gated=gated)

    state, product = chain()
    hidden = x.double() @ first.double().T + bias.double() + residual.double()
    normed = hidden * torch.rsqrt(hidden.pow(2).mean(dim=1, keepdim=True) + 1e-5) * scales.double()
    expected = normed @ second.double().T
    if gated:
        gate, up = expected.chunk(2, dim=1)
        expected = torch.nn.functional.silu(gate) * up
    assert product.shape == expected.shape
    assert apart_from(state.hidden, hidden) < NEAR[dtype]
    assert apart_from(product, expected) < 2 * NEAR[dtype], "inputs are rounded to the dtype twice"
    assert not zeros[0].any()
    assert not zeros[1].any()
    assert torch.equal(chain()[1], product)


def apart_from(product, expected):
    return float((product.double() - expected).norm() / expected.norm())


@pytest.mark.parametrize("times", [1, 6])
@pytest.mark.parametrize("dtype", NEAR)
def test_embedded_tokens_are_rows_of_the_table(dtype, times):
    """The product behind a few rows of float32 computes the norm by itself."""
    _, table, scales = [*operands(1, 30, 72, dtype)[:2], operands(1, 1, 72, dtype)[0][0]]
    token_ids = torch.tensor([[3, 29], [0, 30], [-1, 3]] * times, device=DEVICE)
    state, known = embed(token_ids, table, Norm(scales, 1e-5)), torch.tensor([0, 1, 2, 5], device=DEVICE)
    hidden = table[token_ids.flatten()[known]]
    assert torch.equal(state.hidden.flatten(0, 1)[known], hidden)
    left = [state.hidden]
    if token_ids.numel() <= FEW_ROWS and dtype == torch.float32:
        assert (state.weighted, state.squares) == (None, None)
    else:
        assert apart_from(state.weighted.flatten(0, 1)[known], (hidden * scales).double()) < NEAR[dtype]
        assert apart_from(state.squares[0, known], hidden.double().pow(2).sum(dim=1)) < 1e-6
        left += [state.weighted, state.squares[0].view(-1, 2, 1)]
    for tensor in left:
        assert tensor[1, 1].isnan().all(), "behind the table"
        assert tensor[2, 0].isnan().all()


@pytest.mark.parametrize("rows", [1, 3])
def test_the_last_part_to_come_adds_up(rows, monkeypatch):
    """An earlier part would add sums that are not written yet; in a single thread the last part would hide that."""
    x, weight, _ = operands(rows, 16, 520)
    zeros, run = counters(weight), launch_product.run
    monkeypatch.setattr(
        torch.Tensor,
        "new_empty",
        lambda like, shape, **how: like.new_full((shape,) if isinstance(shape, int) else shape, 7.0, **how),
    )
    monkeypatch.setattr(
        launch_product, "run", lambda kernel, programs, *rest, **how: run(kernel, programs - 1, *rest, **how)
    )
    assert (linear(x, weight, None, zeros, shared=DEEP) == 7).all()
    assert zeros[0] == DEEP.splits - 1


@pytest.mark.parametrize(
    ("most", "end", "dtype", "shared"),
    [
        (MOST_ROWS, 5, torch.bfloat16, SMALL),
        (MOST_ROWS, 5, torch.bfloat16, DEEP),
        (MOST_ROWS, 5, torch.float32, DEEP),
        (MOST_ROWS, 9, torch.bfloat16, SHARED),
        (FEW_OF_FLOAT32, 5, torch.float32, None),
        (FEW_ROWS, 3 + FEW_OF_FLOAT32 + 1, torch.float32, None),
    ],
)
def test_rows_do_not_depend_on_others(most, end, dtype, shared):
    """A text does not depend on the texts that are decoded beside it."""
    x, weight, _ = operands(most, 40, 264, dtype)
    zeros = counters(weight)
    alone = linear(x[3:end], weight, None, zeros, shared=shared)
    assert torch.equal(linear(x, weight, None, zeros, shared=shared)[3:end], alone)
    x[:3], x[end:] = torch.nan, torch.inf
    assert torch.equal(linear(x, weight, None, zeros, shared=shared)[3:end], alone)


def test_shapes_memory_and_nothing_at_all():
    x, weight, bias = operands(6, 24, 64)
    zeros = counters(weight)
    expected = linear(x, weight, bias, zeros)
    assert torch.equal(linear(x.view(2, 3, 64), weight, bias, zeros), expected.view(2, 3, 24))
    wide = torch.cat([x, x], dim=1)[:, :64]  # rows apart
    assert torch.equal(linear(wide, weight, bias, zeros), expected)
    assert linear(x[:0], weight, bias, zeros).shape == (0, 24)


def test_nan_and_inf_stay():
    """A NaN in a weight is seen; padding of rows and inputs adds nothing."""
    x, weight, _ = operands(2, 20, 72)
    weight[3, 5], weight[4, 7] = torch.nan, torch.inf
    product = linear(x, weight, None, counters(weight))
    assert product.isnan().nonzero()[:, 1].unique().tolist() == [3]
    assert product.isinf().nonzero()[:, 1].unique().tolist() == [4]


def test_what_it_takes():
    assert takes(torch.empty(4, 16, dtype=torch.bfloat16, device=DEVICE))
    assert not takes(torch.empty(4, 16, dtype=torch.float64, device=DEVICE))
    assert not takes(torch.empty(4, 12, device=DEVICE)), "rows that begin in the middle of a load"
    assert not takes(torch.empty(16, 4, device=DEVICE).T)
    assert not takes(torch.empty(4, 16, device="meta"))


@pytest.mark.usefixtures("unchecked")  # of which shapes would be refused first
def test_refusals_name_the_argument():
    x, weight, _ = operands(3, 24, 64)
    zeros = counters(weight)
    norm, before = Norm(weight[0, :24].contiguous(), 1e-5), Norm(weight[0].contiguous(), 1e-5)
    many, squares = x.repeat(11, 1), torch.ones(2, 33, device=DEVICE)
    for name, arguments, options in (
        ("weight", (x, weight.double(), None, zeros), {}),
        ("x", (x[:, :32], weight, None, zeros), {}),
        ("x: .* up to 128 rows", (x.repeat(43, 1), weight, None, zeros), {}),
        ("counters", (x, weight, None, zeros[:2]), {}),
        ("squares: .* on", (Normed(many, before, many, squares[:, :2]), weight, None, zeros), {}),
        ("x.weighted", (Normed(many, before, many[:, :8], squares), weight, None, zeros), {}),
        ("x: a state", (Normed(x, before), weight, None, zeros, DEEP), {}),
        ("x: a state", (Normed(many, before, many), weight, None, zeros), {}),
        ("x.norm", (Normed(x, norm), weight, None, zeros), {}),
        ("x: .* up to 128 rows", (x.repeat(20000, 1), weight, None, zeros), {}),
        ("gated: 24 outputs with a bias", (x, weight, weight[:, 0].contiguous(), zeros), {"gated": True}),
        ("bias", (x, weight, weight[0], zeros), {}),
        ("gated: 23", (x, weight[:23], None, zeros), {"gated": True}),
        ("norm", (x, weight, None, zeros), {"residual": x[:, :24].contiguous(), "norm": Norm(x[0, :32], 1e-5)}),
        ("residual", (x, weight, None, zeros), {"residual": x.double(), "norm": norm}),
    ):
        with pytest.raises(ArgumentError, match=f"^{name}"):
            (linear_to_norm if "norm" in options else linear)(*arguments, **options)


@pytest.mark.usefixtures("unchecked")
def test_is_one_node_of_a_compiled_graph():
    """torch.compile takes it whole, and knows its output by shape and dtype."""
    x, weight, bias = operands(4, 24, 64)
    zeros = counters(weight)

    def twice(x):
        return torch.ops.specbench.product(x.view(2, 2, 64), weight, bias, zeros).relu() + 1

    torch.compiler.reset()
    compiled = torch.compile(twice, backend="aot_eager", dynamic=False, fullgraph=True)
    assert torch.equal(compiled(x), twice(x))


@on_a_gpu
@pytest.mark.parametrize("rows", [1, 2, 5])
def test_chains_in_a_graph_wait_for_each_other(rows):
    """Kernels start before those in front have ended. A kernel that reads too early finds another replay's numbers."""
    _, weight, _ = operands(rows, 2048, 2048, torch.bfloat16)
    weight /= 2048**0.5
    all_zeros = [counters(weight) for _ in range(40)]
    x = torch.empty(rows, 2048, device=DEVICE, dtype=torch.bfloat16)

    def chain():
        y = x
        for zeros in all_zeros:
            y = linear(y, weight, None, zeros)
        return y

    x.normal_()
    chain()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = chain()
    for seed in range(20):
        x.copy_(operands(rows, 1, 2048, seed=seed)[0])
        graph.replay()
        y = x
        for zeros in all_zeros:
            torch.cuda.synchronize()
            y = linear(y, weight, None, zeros)
        torch.cuda.synchronize()
        assert torch.equal(out, y)
