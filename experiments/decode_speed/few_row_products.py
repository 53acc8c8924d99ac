"""Products of few rows with the matrices of a step: PyTorch's, and our kernels' in many shapes, on one GPU.

Prints few_row_products.csv: python experiments/decode_speed/few_row_products.py --commit $(git rev-parse --short HEAD).
Every output is held to float64 before it is timed. In a captured graph matrices take turns, as layers of a step do,
until they are far larger than the cache, and in front of each product is a small kernel that makes its input.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import sys
import time
from collections.abc import Callable, Iterator

import torch
import triton
import triton.language as tl
from torch import Tensor

from specbench.kernels import dependent
from specbench.kernels.launch_product import counters, linear
from specbench.kernels.product_tiles import Tiles, tiles

# (model, rows, (outputs, inputs) of each product), joined layers as one
SHAPES = (
    ("32b in two shards", 5, ((5120, 5120), (5120, 4096), (25600, 5120), (5120, 12800))),
    ("8b", 5, ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (128256, 4096))),
    ("0.6b", 1, ((4096, 1024), (1024, 2048), (6144, 1024), (1024, 3072), (151936, 1024))),
    ("1b", 1, ((3072, 2048), (2048, 2048), (16384, 2048), (2048, 8192), (128256, 2048))),
    ("1.7b", 5, ((6144, 2048), (2048, 2048), (16384, 2048), (2048, 8192), (49152, 2048))),
    ("135m", 1, ((960, 576), (576, 576), (3072, 576), (576, 1536), (49152, 576))),
    ("8b", 1, ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (128256, 4096))),
    ("8b", 16, ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (128256, 4096))),
    ("8b", 20, ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336))),
    ("8b", 40, ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (128256, 4096))),
    ("8b", 64, ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (128256, 4096))),
    ("1b", 64, ((3072, 2048), (2048, 2048), (16384, 2048), (2048, 8192), (128256, 2048))),
    ("135m", 64, ((960, 576), (576, 576), (3072, 576), (576, 1536), (49152, 576))),
)
ONE_ROW = (
    *(Tiles(4, 1024, 3, 4, 1), Tiles(8, 512, 4, 4, 1), Tiles(16, 256, 4, 4, 1), Tiles(8, 1024, 2, 4, 1)),
    *(Tiles(8, 512, 6, 4, 1), Tiles(16, 512, 4, 8, 1)),
)
UP_TO_16 = ((64, 128, 4, 4), (64, 128, 6, 4), (64, 128, 8, 4), (64, 256, 4, 4), (128, 64, 6, 4), (128, 128, 4, 8))
ROWS = (
    *((64, 128, 4, 4), (64, 128, 6, 4), (64, 64, 8, 4), (128, 64, 4, 4), (128, 64, 4, 8), (128, 64, 7, 8)),
    (128, 128, 4, 8),
)
SPLITS = (1, 2, 3, 4, 6, 8)
PROGRAMS = 60, 420  # of a shape that is tried, unless it needs no split
BYTES, REPLAYS = 4e8, 12
ERROR = 0.02  # of the largest output: bfloat16 has eight bits


@triton.jit
def _square_kernel(x, out, width, BLOCK: tl.constexpr, EARLY: tl.constexpr):
    """A small kernel as there is one in front of each product: out = x * x / |x|, of one row a program."""
    dependent.wait(EARLY)
    k = tl.arange(0, BLOCK)
    values = tl.load(x + tl.program_id(0) * width + k, mask=k < width, other=0.0).to(tl.float32)
    squared = values * values
    made = squared / tl.sqrt(tl.sum(squared) / width)
    tl.store(out + tl.program_id(0) * width + k, made.to(tl.bfloat16), mask=k < width)


def in_front(x: Tensor, out: Tensor) -> None:
    """Makes the input of a product."""
    width = x.shape[1]
    block = triton.next_power_of_2(width)
    _square_kernel[(len(x),)](x, out, width, BLOCK=block, num_warps=8, **dependent.options(x.device))  # ty: ignore[unknown-argument]


def microseconds(product: Callable[[int], object], count: int) -> float:
    """Of one product, in a captured graph of one for each matrix; the median of REPLAYS."""
    graph, times = torch.cuda.CUDAGraph(), []
    product(0)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        for i in range(count):
            product(i)
    for _ in range(REPLAYS):
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        began.record()
        graph.replay()
        ended.record()
        torch.cuda.synchronize()
        times.append(1e3 * began.elapsed_time(ended) / count)
    return statistics.median(times)


def measured(rows: int, outputs: int, inputs: int) -> Iterator[tuple[Tiles | None, float]]:
    """Microseconds of PyTorch's product, under None, and of the kernels by how they are shared out.

    Raises:
        AssertionError: an output that is wrong.
    """
    torch.manual_seed(0)

    def normal(*size: int) -> Tensor:
        return torch.randn(size, dtype=torch.bfloat16, device="cuda")

    copies = max(2, min(24, int(BYTES / (2 * outputs * inputs))))
    weights = [normal(outputs, inputs) / inputs**0.5 for _ in range(copies)]
    zeros = [counters(weight) for weight in weights]
    x = normal(rows, inputs)
    hidden = torch.empty_like(x)
    in_front(x, hidden)
    exact = hidden.double() @ weights[0].double().T

    def checked(product: Callable[[Tensor, int], Tensor]) -> float:
        def both(i: int) -> Tensor:
            in_front(x, hidden)
            return product(hidden, i)

        out = both(0)
        assert (out.double() - exact).abs().max() < ERROR * exact.abs().max(), (rows, outputs, inputs)
        return microseconds(both, copies)

    yield None, checked(lambda hidden, i: torch.mm(hidden, weights[i].T))
    chosen = tiles(rows, outputs, inputs)
    several = [Tiles(*tile, splits) for tile in (UP_TO_16 if rows <= 16 else ROWS) for splits in SPLITS]
    for shape in dict.fromkeys((chosen, *(ONE_ROW if rows == 1 else several))):
        programs = -(-outputs // shape.outputs) * shape.splits
        fits = PROGRAMS[0] <= programs <= PROGRAMS[1] or shape.splits == 1
        if shape == chosen or (fits and inputs >= 2 * shape.splits * shape.inputs):
            yield (
                shape,
                checked(lambda hidden, i, shape=shape: linear(hidden, weights[i], None, zeros[i], shared=shape)),
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--commit", default="")
    parser.add_argument("--bandwidth", type=float, default=4.25e12, help="bytes a second that a large copy moves")
    parser.add_argument("--seconds", type=float, default=1e9, help="no further product is begun after this")
    options = parser.parse_args()
    rows = csv.writer(sys.stdout)
    tile = ("tile_outputs", "tile_inputs", "stages", "warps", "splits")
    rows.writerow(
        ("model", "rows", "outputs", "inputs", "way", "chosen", *tile, "us", "floor_us", "hardware", "commit")
    )
    began = time.monotonic()
    for model, count, sizes in SHAPES:
        for size in sizes:
            if time.monotonic() - began > options.seconds:
                break
            for shape, took in sorted(measured(count, *size), key=lambda timing: timing[1]):
                parts = (
                    ("", "", "", "", "")
                    if shape is None
                    else (shape.outputs, shape.inputs, shape.stages, shape.warps, shape.splits)
                )
                way = ("torch", "") if shape is None else ("ours", shape == tiles(count, *size))
                about = (
                    f"{took:.2f}",
                    f"{2e6 * size[0] * size[1] / options.bandwidth:.1f}",
                    torch.cuda.get_device_name(),
                    options.commit,
                )
                rows.writerow((model, count, *size, *way, *parts, *about))
                sys.stdout.flush()
