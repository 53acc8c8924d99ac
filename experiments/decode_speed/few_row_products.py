"""Products of one or five tokens with the matrices of a layer: PyTorch's, and a kernel's in many shapes, on one GPU.

Prints few_row_products.csv: python experiments/decode_speed/few_row_products.py --commit $(git rev-parse --short HEAD).
Every output is held to float64 before it is timed. Matrices take turns until they are far larger than the cache.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import statistics
import sys
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

# (model, tokens, outputs, inputs), joined layers as one
SHAPES = (
    *(("8b", 5, *size) for size in ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (128256, 4096))),
    *(("1b", 1, *size) for size in ((3072, 2048), (2048, 2048), (16384, 2048), (2048, 8192))),
    *(("32b in two shards", 5, *size) for size in ((5120, 5120), (5120, 4096), (25600, 5120), (5120, 12800))),
)
# (outputs a tile, inputs a tile, stages, warps)
TILES = (
    *((16, 256, 4, 4), (16, 512, 3, 4), (16, 256, 6, 2), (32, 256, 4, 4), (32, 128, 5, 4), (64, 128, 4, 4)),
    *((64, 256, 3, 8), (128, 64, 4, 4)),
)
SPLITS = (1, 2, 4, 8)  # of the inputs; parts are added as they come, so that the last bits differ from run to run
ROWS = 16  # the least that a product of tiles takes
BYTES, REPLAYS = 6e8, 12
ERROR = 0.02  # of the largest output: bfloat16 has eight bits


@triton.jit
def product_kernel(
    x, weight, out, parts, tokens, outputs, inputs, share,
    ROWS: tl.constexpr, OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, SPLIT: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """out [tokens, outputs] = x [tokens, inputs] @ weight [outputs, inputs].T; SPLIT adds to parts, float32, instead.

    Grid: (outputs / OUTPUTS, splits of ``share`` inputs).
    """
    n, m = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS), tl.arange(0, ROWS)
    first = tl.program_id(1) * share
    total = tl.zeros((OUTPUTS, ROWS), tl.float32)
    for start in tl.range(first, tl.minimum(first + share, inputs), INPUTS, num_stages=STAGES):
        k = start + tl.arange(0, INPUTS)
        held = tl.load(weight + n[:, None] * inputs + k[None, :], eviction_policy="evict_first")
        given = tl.load(x + m[None, :] * inputs + k[:, None], mask=m[None, :] < tokens, other=0.0)
        total = tl.dot(held, given, total)
    at, inside = m[None, :] * outputs + n[:, None], m[None, :] < tokens
    if SPLIT:
        tl.atomic_add(parts + at, total, mask=inside, sem="relaxed")
    else:
        tl.store(out + at, total.to(tl.bfloat16), mask=inside)


def microseconds(product: Callable[[Tensor], object], weights: list[Tensor]) -> float:
    """Of one product, in a captured graph of one for each matrix; the median of REPLAYS."""
    graph, times = torch.cuda.CUDAGraph(), []
    product(weights[0])
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        for weight in weights:
            product(weight)
    for _ in range(REPLAYS):
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        began.record()
        graph.replay()
        ended.record()
        torch.cuda.synchronize()
        times.append(1e3 * began.elapsed_time(ended) / len(weights))
    return statistics.median(times)


def measured(tokens: int, outputs: int, inputs: int) -> dict[tuple[int, ...], float]:
    """Microseconds of PyTorch's product, under (), and of the kernel by tile and splits.

    Raises:
        AssertionError: an output that is wrong.
    """
    torch.manual_seed(0)
    bfloat16: dict[str, Any] = {"dtype": torch.bfloat16, "device": "cuda"}
    copies = max(1, min(12, int(BYTES / (2 * outputs * inputs))))
    weights = [torch.randn(outputs, inputs, **bfloat16) / inputs**0.5 for _ in range(copies)]
    x, out = torch.randn(tokens, inputs, **bfloat16), torch.empty(tokens, outputs, **bfloat16)
    parts = torch.zeros(tokens, outputs, device="cuda")
    exact = x.double() @ weights[0].double().T

    def checked(product: Callable[[Tensor], object]) -> float:
        product(weights[0])
        assert (out.double() - exact).abs().max() < ERROR * exact.abs().max(), (tokens, outputs, inputs)
        return microseconds(product, weights)

    def by_kernel(wide: int, deep: int, stages: int, warps: int, splits: int, share: int) -> Callable[[Tensor], object]:
        kernel: Any = product_kernel

        def product(weight: Tensor) -> None:
            if splits > 1:
                parts.zero_()
            kernel[(outputs // wide, splits)](
                x, weight, out, parts, tokens, outputs, inputs, share,
                ROWS=ROWS, OUTPUTS=wide, INPUTS=deep, SPLIT=splits > 1, STAGES=stages, num_warps=warps,
            )  # fmt: skip
            if splits > 1:
                out.copy_(parts)

        return product

    found: dict[tuple[int, ...], float] = {(): checked(lambda weight: torch.mm(x, weight.T, out=out))}
    for tile, splits in itertools.product(TILES, SPLITS):
        share, programs = triton.cdiv(inputs // splits, tile[1]) * tile[1], outputs // tile[0] * splits
        fits = outputs % tile[0] == 0 and share * (splits - 1) < inputs
        if fits and programs >= 100 and (splits == 1 or programs <= 1200):
            found[(*tile, splits)] = checked(by_kernel(*tile, splits, share))
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--commit", default="")
    parser.add_argument("--bandwidth", type=float, default=4.25e12, help="bytes a second that a large copy moves")
    options = parser.parse_args()
    rows = csv.writer(sys.stdout)
    tile = ("tile_outputs", "tile_inputs", "stages", "warps", "splits")
    rows.writerow(("model", "rows", "outputs", "inputs", "way", *tile, "us", "floor_us", "hardware", "commit"))
    for model, *size in SHAPES:
        floor = 2e6 * size[1] * size[2] / options.bandwidth
        for chosen, took in sorted(measured(*size).items(), key=lambda each: each[1]):
            way = ("triton", *chosen) if chosen else ("torch", *[""] * len(tile))
            about = (f"{took:.2f}", f"{floor:.1f}", torch.cuda.get_device_name(), options.commit)
            rows.writerow((model, *size, *way, *about))
