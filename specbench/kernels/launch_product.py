"""Launches of the products of few rows, as an operator that torch.compile takes as it is."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
import triton
from jaxtyping import Float, Int32, Int64
from torch import Tensor

from specbench.core.errors import ArgumentError
from specbench.kernels import dependent
from specbench.kernels.embedding import embedding_kernel
from specbench.kernels.launch import INTERPRETED, LOGIT_DTYPES, run
from specbench.kernels.product import few_kernel, rows_kernel
from specbench.kernels.product_tiles import FEWEST_ROWS, SHARED, Tiles, by_number, lanes_for, tiles

MOST_ROWS = 128
ALIGNED = 8  # numbers that are loaded at once: each row of a matrix has to have a multiple of this many


@dataclass(frozen=True)
class Normed:
    """A hidden state and what an RMSNorm of it needs, of which the product behind it takes the root.

    Attributes:
        hidden: the state itself.
        weighted: it times the norm's weights.
        squares: float32 [parts, rows] that add up to the sums of its squares.
        epsilon: of the norm.
    """

    hidden: Float[Tensor, "*n size"]
    weighted: Float[Tensor, "*n size"]
    squares: Float[Tensor, "parts rows"]
    epsilon: float


@dataclass(frozen=True)
class Norm:
    """An RMSNorm: its weights and what is added to the mean square."""

    weight: Float[Tensor, " size"]
    epsilon: float


def takes(weight: Tensor) -> bool:
    """Whether the kernels have code for a matrix, where it is."""
    here = weight.device.type == ("cpu" if INTERPRETED else "cuda")
    return here and weight.dtype in LOGIT_DTYPES and weight.is_contiguous() and weight.shape[1] % ALIGNED == 0


def counters(weight: Tensor) -> Int32[Tensor, " tiles"]:
    """What :func:`linear` needs beside a matrix: zeros, which are zeros again after each launch."""
    return torch.zeros(_counters(len(weight)), dtype=torch.int32, device=weight.device)


def linear(
    x: Float[Tensor, "*n inputs"] | Normed,
    weight: Float[Tensor, "outputs inputs"],
    bias: Float[Tensor, " outputs"] | None,
    counters: Int32[Tensor, " tiles"],
    shared: Tiles | None = None,
    *,
    gated: bool = False,
) -> Float[Tensor, "*n results"]:
    """``x @ weight.T + bias`` of up to MOST_ROWS rows, in one launch.

    The result is the same bit for bit each time. No row's result depends on what the others hold; on how many there are
    it may, since few rows are multiplied in another way than more.

    Args:
        x: bfloat16, float16 or float32; of a normed hidden state the RMSNorm is multiplied.
        weight, bias: of the same dtype, contiguous.
        counters: see :func:`counters`; two launches that may run at the same time need their own.
        shared: how it is shared out; see :func:`product_tiles.tiles`.
        gated: whether the matrix is a gate's and, below it, a matrix of as many rows: the result is SiLU of the gate's
            outputs times the other ones (Shazeer 2020, arXiv 2002.05202).

    Raises:
        ArgumentError: names the argument that does not fit.
    """
    return _product_of(x, weight, bias, counters, shared, gated=gated)[0]


def linear_to_norm(
    x: Float[Tensor, "*n inputs"],
    weight: Float[Tensor, "outputs inputs"],
    bias: Float[Tensor, " outputs"] | None,
    counters: Int32[Tensor, " tiles"],
    shared: Tiles | None = None,
    *,
    residual: Float[Tensor, "*n outputs"],
    norm: Norm,
) -> Normed:
    """``residual + x @ weight.T + bias``, rounded once, and what an RMSNorm of the sum needs; see :func:`linear`."""
    out, weighted, squares = _product_of(x, weight, bias, counters, shared, residual=residual, norm=norm)
    return Normed(out, weighted, squares, norm.epsilon)


def embed(token_ids: Int64[Tensor, "*n"], table: Float[Tensor, "vocabulary size"], norm: Norm) -> Normed:
    """Returns the hidden states of tokens, in the table's dtype; NaN for ids that are not in the table.

    Args:
        token_ids: contiguous, on the table's device.
        norm: the norm behind, whose weights have the table's dtype.
    """
    vocabulary, size = table.shape
    rows = token_ids.numel()
    hidden, weighted = (table.new_empty((*token_ids.shape, size)) for _ in range(2))
    squares = table.new_empty((1, rows), dtype=torch.float32)
    run(
        embedding_kernel, rows, token_ids, table, norm.weight, hidden, weighted, squares, rows, vocabulary,
        SIZE=size, LANES=triton.next_power_of_2(size), num_warps=4, **dependent.options(table.device),
    )  # fmt: skip
    return Normed(hidden, weighted, squares, norm.epsilon)


def _product_of(
    x: Tensor | Normed,
    weight: Tensor,
    bias: Tensor | None,
    counters: Tensor,
    shared: Tiles | None,
    *,
    gated: bool = False,
    residual: Tensor | None = None,
    norm: Norm | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    given, squares, epsilon = (x.weighted, x.squares, x.epsilon) if isinstance(x, Normed) else (x, None, 0.0)
    _check(given, squares, weight, counters, gated, residual, norm)
    outputs, inputs = weight.shape
    rows = given.reshape(-1, inputs).contiguous()
    count = len(rows)
    out = given.new_empty((*given.shape[:-1], outputs // 2 if gated else outputs))
    use = shared or tiles(count, outputs, inputs, given.element_size(), _shared(given.device))
    columns = triton.cdiv(outputs, use.outputs)
    weighted = sums = out
    if norm is not None:
        weighted, sums = torch.empty_like(out), out.new_empty((columns, count), dtype=torch.float32)
    if count == 0:
        return out, weighted, sums
    tensors = (bias, residual, squares, None if norm is None else norm.weight)
    arguments = (rows, weight, *(weight if tensor is None else tensor for tensor in tensors), out, weighted, sums)
    options = {
        "OUTPUTS": use.outputs, "INPUTS": use.inputs, "STAGES": use.stages, "EVEN": inputs % use.inputs == 0,
        "BIAS": bias is not None, "RESIDUAL": residual is not None, "NORM": norm is not None, "GATED": gated,
        "SQUARES": 0 if squares is None else triton.next_power_of_2(len(squares)),
        "num_warps": use.warps, **dependent.options(given.device),
    }  # fmt: skip
    sizes, squared = (count, outputs, inputs), (0 if squares is None else len(squares), epsilon)
    if use.splits == 1 and by_number(count, inputs, given.element_size()):
        options |= {"ROWS": lanes_for(count, alone=True), "WHOLE": use.inputs >= inputs}
        run(few_kernel, columns, *arguments, *sizes, *squared, **options)
        return out, weighted, sums
    lanes = use.rows or lanes_for(count)
    share = triton.cdiv(triton.cdiv(inputs, use.splits), use.inputs) * use.inputs
    programs = columns * use.splits * triton.cdiv(count, lanes)
    parts = out if use.splits == 1 else out.new_empty(use.splits * count * outputs, dtype=torch.float32)
    options |= {"ROWS": lanes, "SPLITS": use.splits}
    run(rows_kernel, programs, *arguments, parts, counters, *sizes, share, *squared, **options)
    return out, weighted, sums


@functools.cache
def _shared(device: torch.device) -> int:
    return SHARED if INTERPRETED else torch.cuda.get_device_properties(device).shared_memory_per_block_optin


def _counters(outputs: int) -> int:
    return triton.cdiv(outputs, FEWEST_ROWS) * (MOST_ROWS // FEWEST_ROWS)  # the smallest tiles of matrix units


def _check(
    x: Tensor,
    squares: Tensor | None,
    weight: Tensor,
    counters: Tensor,
    gated: bool,
    residual: Tensor | None,
    norm: Norm | None,
) -> None:
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
    if gated and outputs % 2:
        raise ArgumentError(f"gated: {outputs} outputs; an even number needed")
    rows, results = x.numel() // inputs, (*x.shape[:-1], outputs)
    for name, tensor, shape, dtype in (
        ("squares", squares, None if squares is None else (len(squares), rows), torch.float32),
        ("residual", residual, results, x.dtype),
        ("norm", None if norm is None else norm.weight, (outputs,), x.dtype),
    ):
        if tensor is not None and (
            tensor.shape != shape or tensor.dtype != dtype or tensor.device != x.device or not tensor.is_contiguous()
        ):
            raise ArgumentError(
                f"{name}: {tensor.dtype} {tuple(tensor.shape)} on {tensor.device}; "
                f"contiguous {dtype} {shape} on {x.device} needed"
            )
    if counters.dtype != torch.int32 or len(counters) < _counters(outputs):
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
