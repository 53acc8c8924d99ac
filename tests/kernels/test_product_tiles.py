"""How products are shared out: by which kernel, and into tiles that cover all inputs and fit."""

import math

import pytest
import torch

from specbench.kernels import launch_product, product_tiles
from specbench.kernels.launch_product import MOST_ROWS, counters, linear
from specbench.kernels.product_tiles import FEW_OF_FLOAT32, FEW_ROWS, SHORT, WHOLE, tiles
from tests.kernels.test_product_kernels import operands

pytestmark = pytest.mark.usefixtures("poison")


def test_which_kernel_multiplies(monkeypatch):
    """A few rows of float32, more of a light matrix, and one row or two of 16 bits go through no matrix units."""
    kernels, run = [], launch_product.run
    noted = lambda kernel, *rest, **how: (kernels.append(kernel), run(kernel, *rest, **how))  # noqa: E731
    monkeypatch.setattr(launch_product, "run", noted)
    cases = [
        *((rows, WHOLE, torch.float32) for rows in (1, FEW_ROWS, FEW_ROWS + 1)),
        *((rows, WHOLE + 8, torch.float32) for rows in (FEW_OF_FLOAT32, FEW_OF_FLOAT32 + 1)),
        *((rows, 64, torch.float16) for rows in (1, 2, 3)),
    ]
    monkeypatch.setattr(product_tiles, "BROAD", 72)
    monkeypatch.setattr(product_tiles, "LIGHT", 16 * WHOLE)
    for rows, inputs, dtype in (*cases, (2, 72, torch.float16)):
        x, weight, _ = operands(rows, 16, inputs, dtype)
        linear(x, weight, None, counters(weight))
    few, many = launch_product.few_kernel, launch_product.rows_kernel
    assert kernels == [few, few, many, few, many, few, few, many, many]
    assert product_tiles.by_number(FEW_ROWS, SHORT, 4, 9999)
    assert not product_tiles.by_number(FEW_OF_FLOAT32 + 1, WHOLE, 4, 17), "a heavy matrix"
    assert not product_tiles.by_number(FEW_OF_FLOAT32 + 1, SHORT + 1, 4), "any matrix, behind a norm"


@pytest.mark.parametrize("rows", [1, 2, 5, 17, 33, MOST_ROWS])
@pytest.mark.parametrize(
    "size", [(6144, 4096), (5120, 12800), (576, 1536), (2048, 8192), (128256, 2048), (32000, 192), (960, 576), (8, 8)]
)
@pytest.mark.parametrize("itemsize", [2, 4])
def test_all_inputs_are_shared_out_and_tiles_fit(rows, size, itemsize):
    """Of a GPU with 99 KiB for tiles too: one tile too many, and nothing is launched at all."""
    outputs, inputs = size
    use = tiles(rows, outputs, inputs, itemsize, 99 * 1024)
    lanes = use.rows or 2 ** math.ceil(math.log2(rows))
    share = math.ceil(math.ceil(inputs / use.splits) / use.inputs) * use.inputs
    assert share * use.splits >= inputs
    if use.stages == 1:  # a program holds its only tile in registers
        assert use.inputs >= inputs
        assert use.outputs * use.inputs * itemsize <= 2**16
    else:
        assert use.stages * (use.outputs + lanes) * use.inputs * itemsize <= 99 * 1024
    columns, row_tiles = math.ceil(outputs / use.outputs), math.ceil(rows / lanes)
    assert use.splits == 1 or columns * row_tiles * use.splits <= 2 * product_tiles.MULTIPROCESSORS
    assert use.splits == 1 or len(counters(torch.empty(outputs, inputs, device="meta"))) >= columns * row_tiles
