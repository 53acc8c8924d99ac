"""Launches of the products of few rows, as an operator that torch.compile takes as it is."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
import triton
from jaxtyping import Float, Int32
from torch import Tensor

from specbench.core.errors import ArgumentError
from specbench.kernels import dependent
from specbench.kernels.launch import INTERPRETED, LOGIT_DTYPES, run
from specbench.kernels.product import few_kernel, row_kernel, rows_kernel

MOST_ROWS = 64
ROWS_OF_FLOAT32 = 16  # up to this many rows are multiplied without matrix units, which round float32;
FEW_OF_FLOAT32 = 8  # up to this many with any matrix,
SMALL = 2048  # more with matrices of up to this many outputs
FEWEST_ROWS = 16  # that the right operand of the matrix units has
FEW_ROWS = 32  # with more, PyTorch's products of small matrices are as fast
LARGE = (16384, 1024)  # outputs and inputs of a matrix that is not small
ALIGNED = 8  # numbers that are loaded at once: each row of a matrix has to have a multiple of this many
ENOUGH = 64  # programs that together keep the memory of an H100 or H200 busy
MULTIPROCESSORS = 132  # of those
SHARED = 227 * 1024  # bytes that a program may have for tiles on their way, there


@dataclass(frozen=True)
class Tiles:
    """How a product is shared out: numbers a tile, tiles on their way at once, warps, and parts of the inputs."""

    outputs: int
    inputs: int
    stages: int
    warps: int
    splits: int


def tiles(rows: int, outputs: int, inputs: int, itemsize: int = 2, shared: int = SHARED) -> Tiles:
    """The sizes that were fastest on an H200 (experiments/decode_speed.md), and that fit.

    Nothing is timed here, so that all processes with GPUs of one kind choose alike.

    Args:
        itemsize: bytes of a number.
        shared: bytes that a program may have for tiles on their way.
    """
    if rows == 1:
        if inputs <= 1024 or min(outputs, inputs) >= 4096:
            return Tiles(16, 256, 4, 4, 1)
        return Tiles(8, 512, 4, 4, 1) if outputs <= 4096 else Tiles(8, 1024, 2, 4, 1)
    if itemsize > 2 and rows <= ROWS_OF_FLOAT32:
        return Tiles(2, 256, 2, 4, 1) if outputs < 1024 else Tiles(4, 128, 2, 1, 1)
    wide, warps = (64, 4) if rows <= FEW_ROWS else (128, 8)
    deep = 256 // itemsize
    programs = triton.cdiv(outputs, wide)
    splits = 1 if programs >= ENOUGH else max(1, min(MULTIPROCESSORS // programs, inputs // (2 * deep), 8))
    stages = 4 if programs > MULTIPROCESSORS or rows > FEW_ROWS else 8
    fitting = shared // ((wide + _lanes(rows)) * deep * itemsize)
    return Tiles(wide, deep, max(2, min(stages, fitting)), warps, splits)


def worth(rows: int, outputs: int, inputs: int, itemsize: int = 2) -> bool:
    """Whether such a product was faster than PyTorch's on an H200 or H100 (experiments/decode_speed.md)."""
    if itemsize > 2:
        return rows <= (ROWS_OF_FLOAT32 if outputs <= SMALL else FEW_OF_FLOAT32)
    return rows <= FEW_ROWS or (rows <= MOST_ROWS and outputs >= LARGE[0] and inputs >= LARGE[1])


def takes(weight: Tensor) -> bool:
    """Whether the kernels have code for a matrix, where it is."""
    here = weight.device.type == ("cpu" if INTERPRETED else "cuda")
    return here and weight.dtype in LOGIT_DTYPES and weight.is_contiguous() and weight.shape[1] % ALIGNED == 0


def counters(weight: Tensor) -> Int32[Tensor, " tiles"]:
    """What :func:`linear` needs beside a matrix: zeros, which are zeros again after each launch."""
    return torch.zeros(triton.cdiv(len(weight), 4), dtype=torch.int32, device=weight.device)


def linear(
    x: Float[Tensor, "*n inputs"],
    weight: Float[Tensor, "outputs inputs"],
    bias: Float[Tensor, " outputs"] | None,
    counters: Int32[Tensor, " tiles"],
    shared: Tiles | None = None,
) -> Float[Tensor, "*n outputs"]:
    """``x @ weight.T + bias`` of up to MOST_ROWS rows, in one launch.

    The result is the same bit for bit each time. No row's result depends on what the others hold; on how many there are
    it may: one is multiplied in another way than more, and up to ROWS_OF_FLOAT32 of float32 in a third.

    Args:
        x: bfloat16, float16 or float32.
        weight, bias: of the same dtype, contiguous.
        counters: see :func:`counters`; two launches that may run at the same time need their own.
        shared: how it is shared out; see :func:`tiles`.

    Raises:
        ArgumentError: names the argument that does not fit.
    """
    _check(x, weight, counters)
    outputs, inputs = weight.shape
    rows = x.reshape(-1, inputs).contiguous()
    count = len(rows)
    out = x.new_empty((*x.shape[:-1], outputs))
    if count == 0:
        return out
    use = shared or tiles(count, outputs, inputs, x.element_size(), _shared(x.device))
    share = triton.cdiv(triton.cdiv(inputs, use.splits), use.inputs) * use.inputs
    most = 1 if count == 1 else _lanes(count)
    parts = out if use.splits == 1 else out.new_empty(use.splits * most * outputs, dtype=torch.float32)
    tensors = (rows, weight, weight if bias is None else bias, out)
    options = {
        "OUTPUTS": use.outputs, "INPUTS": use.inputs, "STAGES": use.stages, "EVEN": inputs % use.inputs == 0,
        "BIAS": bias is not None, "num_warps": use.warps, **dependent.options(x.device),
    }  # fmt: skip
    programs, sizes = triton.cdiv(outputs, use.outputs) * use.splits, (outputs, inputs, share)
    if count == 1:
        run(row_kernel, programs, *tensors, parts, counters, *sizes, SPLITS=use.splits, **options)
    elif x.dtype == torch.float32 and count <= ROWS_OF_FLOAT32 and use.splits == 1:
        lanes = FEW_OF_FLOAT32 if count <= FEW_OF_FLOAT32 else ROWS_OF_FLOAT32
        run(few_kernel, programs, *tensors, count, outputs, inputs, ROWS=lanes, **options)
    else:
        run(rows_kernel, programs, *tensors, parts, counters, count, *sizes, ROWS=most, SPLITS=use.splits, **options)
    return out


def _lanes(rows: int) -> int:
    """Rows that a kernel has room for."""
    return max(FEWEST_ROWS, triton.next_power_of_2(rows))


@functools.cache
def _shared(device: torch.device) -> int:
    return SHARED if INTERPRETED else torch.cuda.get_device_properties(device).shared_memory_per_block_optin


def _check(x: Tensor, weight: Tensor, counters: Tensor) -> None:
    """Raises ArgumentError for what the kernels cannot take. Reads no device data."""
    if not takes(weight):
        raise ArgumentError(
            f"weight: {weight.dtype} {tuple(weight.shape)} on {weight.device}; a contiguous matrix of bfloat16, "
            f"float16 or float32 needed, of a multiple of {ALIGNED} inputs, on {'a CPU' if INTERPRETED else 'a GPU'}"
        )
    outputs, inputs = weight.shape
    if x.dtype != weight.dtype or x.device != weight.device or x.shape[-1] != inputs or x.numel() > MOST_ROWS * inputs:
        raise ArgumentError(
            f"x: {x.dtype} {tuple(x.shape)} on {x.device}; "
            f"up to {MOST_ROWS} rows of {inputs} numbers like the weight's needed"
        )
    if counters.dtype != torch.int32 or len(counters) < triton.cdiv(outputs, 4):
        raise ArgumentError(f"counters: {len(counters)} of {counters.dtype}; those of counters(weight) needed")


def _launched(x: Tensor, weight: Tensor, bias: Tensor | None, counters: Tensor) -> Tensor:
    return linear(x, weight, bias, counters)


_product = torch.library.custom_op(
    "specbench::product",
    _launched,
    mutates_args=(),  # the counters are what they were
    schema="(Tensor x, Tensor weight, Tensor? bias, Tensor counters) -> Tensor",
)


@_product.register_fake
def _(x, weight, bias, counters):
    return x.new_empty((*x.shape[:-1], len(weight)))
