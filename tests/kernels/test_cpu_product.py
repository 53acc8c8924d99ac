"""Products of few rows on a CPU (kernels/cpu_product.h) are PyTorch's, whatever holds the weights."""

import pytest
import torch
from torch.nn.functional import linear

from specbench.kernels import cpu_product


@pytest.fixture
def product():
    cpu_product.load()
    return lambda x, weight: cpu_product.product(x, cpu_product.pack(weight), len(weight))


ROUNDING = 3e-6  # of float32 sums of 512 terms; a row that is cut off after 16 bits is 1e-5 apart


def error(products, x, weight):
    """The largest error of a product, as a part of the sum of its absolute terms."""
    exact, terms = linear(x.double(), weight.double()), linear(x.double().abs(), weight.double().abs())
    return ((products - exact).abs() / terms.clamp(min=1e-300)).max()


def uneven(*shape):
    """Numbers of which few are much larger than the others, as a model's activations are."""
    return torch.randn(shape) * torch.exp(3 * torch.randn(shape))


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 23])
@pytest.mark.parametrize(("outputs", "inputs"), [(32, 8), (61, 33), (704, 256), (1, 1)])
def test_the_product_is_that_of_pytorch(product, rows, outputs, inputs):
    """For any number of rows, outputs that fill no block, and an odd number of inputs."""
    x, weight = uneven(1, rows, inputs), torch.randn(outputs, inputs)
    assert error(product(x, weight), x, weight) < ROUNDING


@pytest.mark.parametrize("rows", [1, 3, 5, 11])
def test_weights_that_bfloat16_holds_take_two_bytes_and_give_the_same_numbers(product, rows):
    x, weight = uneven(1, rows, 33), torch.randn(61, 33).bfloat16().float()
    assert cpu_product.pack(weight).dtype == torch.bfloat16
    wide = cpu_product.product(x, cpu_product.pack(weight, torch.float32), 61)
    assert torch.equal(product(x, weight), wide)
    weight[60, 32] = 1.0 + 2.0**-20
    assert cpu_product.pack(weight).dtype == torch.float32
    assert error(product(x, weight), x, weight) < ROUNDING


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 11])
@pytest.mark.parametrize(("outputs", "inputs"), [(32, 8), (61, 33), (192, 512)])
def test_multiples_of_a_rows_power_of_two_take_one_byte(product, rows, outputs, inputs):
    """Rows of all sizes, one of zeros; from -127 on, and what fits no byte any more."""
    x, multiples = uneven(1, rows, inputs), torch.randint(-127, 128, (outputs, inputs))
    multiples[:, 0], multiples[3] = -127, 0
    weight = multiples * torch.exp2(torch.arange(outputs) % 40 - 30.0)[:, None]
    assert cpu_product.pack(weight).dtype == torch.int8
    assert error(product(x, weight), x, weight) < ROUNDING
    for changed in (255 * weight[1, 0] / 254, 2.0**-60):
        weight[1, 1] = changed
        assert cpu_product.pack(weight).dtype == torch.bfloat16


@pytest.mark.parametrize(("smallest", "holds"), [(1 + 2**-12, "float32"), (2**-9, "bfloat16"), (1, "int8")])
def test_rows_that_are_not_finite_are_not_finite_afterwards(product, smallest, holds):
    """Scores that overflow have to be seen in the logits; rows beside them, and one of zeros, are as ever."""
    weight = torch.randint(1, 100, (40, 64)).float()
    weight[0] = smallest
    weight[0, 0] = 99
    assert cpu_product.pack(weight).dtype == getattr(torch, holds)
    x = torch.randn(1, 4, 64)
    x[0, 0], x[0, 1, 5], x[0, 2, 63] = 0.0, float("inf"), float("nan")
    products = product(x, weight)[0]
    assert (products[0] == 0).all()
    assert not products[1:3].isfinite().any()
    assert error(products[3], x[0, 3], weight) < ROUNDING


def test_subnormal_numbers_take_two_bytes():
    """No power of two of which they are multiples is a normal float, and a product may flush others to 0."""
    cpu_product.load()
    assert cpu_product.pack(torch.full((4, 4), 2.0**-126)).dtype == torch.int8
    assert cpu_product.pack(torch.full((4, 4), 2.0**-130)).dtype == torch.bfloat16


def test_the_embedded_draft_takes_one_byte_a_weight(pair):
    """Its speedup on a CPU hangs on it (experiments/cpu_speed/README.md)."""
    matrices = [layer.weight for layer in pair.draft.modules() if isinstance(layer, torch.nn.Linear)]
    assert {cpu_product.narrowest(matrix) for matrix in matrices} == {torch.int8}


def test_the_library_leaves_subnormal_numbers_alone():
    """A library that is linked with -ffast-math has the processor flush them to 0, in all that the process computes."""
    cpu_product.load()
    assert float((torch.full((64,), 1e-39) * 0.5).max()) > 0
