"""Launches of the products of few rows, as an operator that torch.compile takes as it is."""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass

import torch
import triton
from jaxtyping import Float, Int32
from torch import Tensor

from specbench.core.errors import ArgumentError
from specbench.kernels import dependent
from specbench.kernels.launch import INTERPRETED, LOGIT_DTYPES, run
from specbench.kernels.product import few_kernel, rows_kernel

MOST_ROWS = 64
ROWS_OF_FLOAT32 = 16  # up to this many rows are multiplied without matrix units, which round float32;
FEW_OF_FLOAT32 = 8  # up to this many with any matrix,
SMALL = 2048  # more with matrices of up to this many outputs
FEW_OF_HALF = 2  # up to this many rows of 16 bits are multiplied so too, if they are shorter than BROAD
BROAD = 2048
MOST_AT_ONCE = 2**14  # bytes of a row of weights that a program reads at once
FEWEST_ROWS = 16  # that the right operand of the matrix units has
FEW_ROWS = 32  # with more, PyTorch's products of small matrices are as fast
LARGE = (16384, 1024)  # outputs and inputs of a matrix that is not small
ALIGNED = 8  # numbers that are loaded at once: each row of a matrix has to have a multiple of this many
ENOUGH = 64  # programs that together keep the memory of an H100 or H200 busy
MULTIPROCESSORS = 132  # of those
SHARED = 227 * 1024  # bytes that a program may have for tiles on their way, there


@dataclass(frozen=True)
class Around:
    """What stands around a product in a layer, and is part of its launch.

    Attributes:
        norm: weights of the RMSNorm of the input (Zhang and Sennrich 2019, arXiv 1910.07467); None for no norm.
        epsilon: of the norm.
        gated: whether the matrix is a gate's and, below it, a matrix of as many rows: the result is SiLU of the gate's
            outputs times the other ones (Shazeer 2020, arXiv 2002.05202).
        residual: what is added to the outputs, of their shape; None for nothing, as with ``gated``.
    """

    norm: Float[Tensor, " inputs"] | None = None
    epsilon: float = 0.0
    gated: bool = False
    residual: Float[Tensor, "*n outputs"] | None = None


NOTHING = Around()


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
    if _by_number(rows, inputs, itemsize):
        if rows > 1 and itemsize > 2:
            return Tiles(2, 256, 2, 4, 1) if outputs < 1024 else Tiles(4, 128, 2, 1, 1)
        if inputs * itemsize <= MOST_AT_ONCE and min(outputs, inputs) < 2 * BROAD:
            return Tiles(4 if inputs >= BROAD else 8, max(256, triton.next_power_of_2(inputs)), 1, 4, 1)
        return Tiles(16, 256, 4, 4, 1) if min(outputs, inputs) >= 2 * BROAD else Tiles(8, 512, 4, 4, 1)
    large = rows > FEW_ROWS and outputs >= LARGE[0]
    wide, warps = (128, 8) if large else (64, 4)
    programs = triton.cdiv(outputs, wide)
    deep, stages = 128, 8 if rows <= FEW_ROWS else 4
    if rows <= FEW_ROWS and programs > ENOUGH:
        deep, stages = 256, 4
    elif rows > FEW_ROWS and inputs < BROAD:
        deep = 64
    deep = deep * 2 // itemsize
    splits = 1 if programs > ENOUGH else max(1, min(MULTIPROCESSORS // programs, inputs // (2 * deep), 8))
    fitting = shared // ((wide + _lanes(rows)) * deep * itemsize)
    return Tiles(wide, deep, max(2, min(stages, fitting)), warps, splits)


def _by_number(rows: int, inputs: int, itemsize: int) -> bool:
    """Whether each number is multiplied and added by itself, in place of matrix units."""
    if itemsize > 2:
        return rows <= ROWS_OF_FLOAT32
    return rows <= (FEW_OF_HALF if inputs < BROAD else 1)


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
    around: Around = NOTHING,
) -> Float[Tensor, "*n results"]:
    """``x @ weight.T + bias`` of up to MOST_ROWS rows, in one launch.

    The result is the same bit for bit each time. No row's result depends on what the others hold; on how many there are
    it may, since few rows are multiplied in another way than more.

    Args:
        x: bfloat16, float16 or float32.
        weight, bias: of the same dtype, contiguous.
        counters: see :func:`counters`; two launches that may run at the same time need their own.
        shared: how it is shared out; see :func:`tiles`.
        around: what else is computed; sums are rounded once, at the end.

    Raises:
        ArgumentError: names the argument that does not fit.
    """
    _check(x, weight, counters, around)
    outputs, inputs = weight.shape
    rows = x.reshape(-1, inputs).contiguous()
    count = len(rows)
    out = x.new_empty((*x.shape[:-1], outputs // 2 if around.gated else outputs))
    if count == 0:
        return out
    if around.norm is not None and count > FEW_ROWS and inputs > BROAD:
        rows = torch.nn.functional.rms_norm(rows, (inputs,), around.norm, around.epsilon)
        around = dataclasses.replace(around, norm=None)
    use = shared or tiles(count, outputs, inputs, x.element_size(), _shared(x.device))
    tensors = (bias, around.norm, around.residual)
    arguments = (rows, weight, *(weight if tensor is None else tensor for tensor in tensors), out)
    options = {
        "OUTPUTS": use.outputs, "INPUTS": use.inputs, "STAGES": use.stages, "EVEN": inputs % use.inputs == 0,
        "BIAS": bias is not None, "NORM": around.norm is not None, "RESIDUAL": around.residual is not None,
        "GATED": around.gated, "num_warps": use.warps, **dependent.options(x.device),
    }  # fmt: skip
    programs, sizes = triton.cdiv(outputs, use.outputs) * use.splits, (count, outputs, inputs)
    if use.splits == 1 and _by_number(count, inputs, x.element_size()):
        lanes = count if count <= FEW_OF_HALF else FEW_OF_FLOAT32 if count <= FEW_OF_FLOAT32 else ROWS_OF_FLOAT32
        options |= {"ROWS": lanes, "WHOLE": use.inputs >= inputs}
        run(few_kernel, programs, *arguments, *sizes, around.epsilon, **options)
        return out
    lanes, share = _lanes(count), triton.cdiv(triton.cdiv(inputs, use.splits), use.inputs) * use.inputs
    parts = out
    if use.splits > 1:
        parts = out.new_empty(use.splits * lanes * outputs + programs * lanes, dtype=torch.float32)
    options |= {"ROWS": lanes, "SPLITS": use.splits}
    run(rows_kernel, programs, *arguments, parts, counters, *sizes, share, around.epsilon, **options)
    return out


def _lanes(rows: int) -> int:
    """Rows that a kernel has room for."""
    return max(FEWEST_ROWS, triton.next_power_of_2(rows))


@functools.cache
def _shared(device: torch.device) -> int:
    return SHARED if INTERPRETED else torch.cuda.get_device_properties(device).shared_memory_per_block_optin


def _check(x: Tensor, weight: Tensor, counters: Tensor, around: Around) -> None:
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
    if around.gated and (outputs % 2 or around.residual is not None):
        added = "no sum" if around.residual is None else "a sum"
        raise ArgumentError(f"around.gated: {outputs} outputs and {added}; an even number and no sum needed")
    results = (*x.shape[:-1], outputs)
    for name, tensor, shape in (("norm", around.norm, (inputs,)), ("residual", around.residual, results)):
        if tensor is not None and (
            tensor.shape != shape or tensor.dtype != x.dtype or tensor.device != x.device or not tensor.is_contiguous()
        ):
            raise ArgumentError(
                f"around.{name}: {tensor.dtype} {tuple(tensor.shape)} on {tensor.device}; "
                f"contiguous {x.dtype} {tuple(shape)} on {x.device} needed"
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
