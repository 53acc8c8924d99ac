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
from specbench.kernels.launch import INTERPRETED, LOGIT_DTYPES, check_array, run
from specbench.kernels.product import few_kernel, rows_kernel
from specbench.kernels.product_tiles import FEW_OF_FLOAT32, FEWEST_ROWS, SHARED, Tiles, by_number, lanes_for, tiles

MOST_ROWS = 128
ALIGNED = 8  # numbers that are loaded at once: each row of a matrix has to have a multiple of this many


@dataclass(frozen=True)
class Normed:
    """A hidden state and the RMSNorm between it and the product behind it.

    Attributes:
        hidden: the state itself.
        norm: of it.
        weighted: it times the norm's weights; None if the product multiplies number by number, which computes the norm.
        squares: float32 [parts, rows] that add up to the sums of its squares; None likewise.
    """

    hidden: Float[Tensor, "*n size"]
    norm: Norm
    weighted: Float[Tensor, "*n size"] | None = None
    squares: Float[Tensor, "parts rows"] | None = None


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
    return Normed(out, norm, weighted, squares)


def embed(token_ids: Int64[Tensor, "*n"], table: Float[Tensor, "vocabulary size"], norm: Norm) -> Normed:
    """Returns the hidden states of tokens, in the table's dtype; NaN for ids that are not in the table.

    Args:
        token_ids: contiguous, on the table's device.
        norm: the norm behind, whose weights have the table's dtype.
    """
    vocabulary, size = table.shape
    rows, hidden = token_ids.numel(), table.new_empty((*token_ids.shape, size))
    weighted, squares = _for_norm(hidden, 1)
    run(
        embedding_kernel, rows, token_ids, table, norm.weight, hidden, *_pointers(hidden, weighted, squares), rows,
        vocabulary, SIZE=size, LANES=triton.next_power_of_2(size), NORM=weighted is not None, num_warps=4,
        **dependent.options(table.device),
    )  # fmt: skip
    return Normed(hidden, norm, weighted, squares)


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
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    hidden, before = (x.hidden, x.norm) if isinstance(x, Normed) else (x, None)
    _check(hidden, weight, bias, counters, gated, residual, before, norm)
    outputs, inputs = weight.shape
    count = hidden.numel() // inputs
    itemsize, normed = hidden.element_size(), before is not None
    use = shared or tiles(count, outputs, inputs, itemsize, _shared(hidden.device), normed)
    alone = use.splits == 1 and by_number(count, inputs, itemsize, 0 if normed else outputs)
    given, squares = hidden, None
    if isinstance(x, Normed) and not alone:
        given, squares = _shared_norm(x, count)
    rows = given.reshape(-1, inputs).contiguous()
    out = given.new_empty((*given.shape[:-1], outputs // 2 if gated else outputs))
    columns = triton.cdiv(outputs, use.outputs)
    weighted, sums = (None, None) if norm is None else _for_norm(out, columns)
    if count == 0:
        return out, weighted, sums
    options = {
        "OUTPUTS": use.outputs, "INPUTS": use.inputs, "STAGES": use.stages, "EVEN": inputs % use.inputs == 0,
        "BIAS": bias is not None, "RESIDUAL": residual is not None, "GATED": gated, "NORM": weighted is not None,
        "num_warps": use.warps, **dependent.options(given.device),
    }  # fmt: skip
    after, left = None if norm is None else norm.weight, _pointers(out, weighted, sums)
    sizes, epsilon = (count, outputs, inputs), 0.0 if before is None else before.epsilon
    if alone:
        whole, row_tiles = use.inputs >= inputs, triton.cdiv(count, FEW_OF_FLOAT32)
        share = triton.cdiv(count, row_tiles)
        lanes, in_turn = lanes_for(share, alone=True), whole and (use.warps == 1 or share == 1)
        options |= {
            "ROWS": share if in_turn or row_tiles > 1 else lanes, "ROW_TILES": row_tiles, "LANES": lanes,
            "WHOLE": whole, "IN_TURN": in_turn, "NORMED": normed,
        }  # fmt: skip
        operands = _pointers(weight, bias, residual, None if before is None else before.weight, after)
        run(few_kernel, columns * row_tiles, rows, weight, *operands, out, *left, *sizes, epsilon, **options)
        return out, weighted, sums
    lanes = use.rows or lanes_for(count)
    share = triton.cdiv(triton.cdiv(inputs, use.splits), use.inputs) * use.inputs
    programs = columns * use.splits * triton.cdiv(count, lanes)
    parts = out if use.splits == 1 else out.new_empty(use.splits * count * outputs, dtype=torch.float32)
    options |= {
        "ROWS": lanes, "SPLITS": use.splits, "SQUARES": 0 if squares is None else triton.next_power_of_2(len(squares)),
    }  # fmt: skip
    operands = _pointers(weight, bias, residual, squares, after)
    squared = (0 if squares is None else len(squares), epsilon)
    run(rows_kernel, programs, rows, weight, *operands, out, *left, parts, counters, *sizes, share, *squared, **options)
    return out, weighted, sums


def _shared_norm(state: Normed, rows: int) -> tuple[Tensor, Tensor]:
    """Returns what matrix units need of a normed state. Raises ArgumentError if it is not there."""
    weighted, squares, hidden = state.weighted, state.squares, state.hidden
    if weighted is None or squares is None:
        raise ArgumentError("x: a state whose norm is left to the product; one with weighted and squares needed")
    check_array("x.weighted", weighted, hidden.dtype, hidden.shape, hidden)
    check_array("squares", squares, torch.float32, (len(squares), rows), hidden)
    return weighted, squares


def _for_norm(hidden: Tensor, parts: int) -> tuple[Tensor | None, Tensor | None]:
    """Returns what a product of an RMSNorm of ``hidden`` needs, to be filled; None if it needs the state alone."""
    size = hidden.shape[-1]
    rows = hidden.numel() // size
    if by_number(rows, size, hidden.element_size()):
        return None, None
    return torch.empty_like(hidden), hidden.new_empty((parts, rows), dtype=torch.float32)


def _pointers(like: Tensor, *tensors: Tensor | None) -> list[Tensor]:
    """Returns the arguments of a kernel, with ``like`` in place of None, which the kernel does not read."""
    return [like if tensor is None else tensor for tensor in tensors]


@functools.cache
def _shared(device: torch.device) -> int:
    return SHARED if INTERPRETED else torch.cuda.get_device_properties(device).shared_memory_per_block_optin


def _counters(outputs: int) -> int:
    return triton.cdiv(outputs, FEWEST_ROWS) * (MOST_ROWS // FEWEST_ROWS)  # the smallest tiles of matrix units


def _check(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    counters: Tensor,
    gated: bool,
    residual: Tensor | None,
    before: Norm | None,
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
    if gated and (outputs % 2 or bias is not None):
        raise ArgumentError(
            f"gated: {outputs} outputs{'' if bias is None else ' with a bias'}; an even number without one needed"
        )
    for name, tensor, shape in (
        ("bias", bias, (outputs,)),
        ("residual", residual, (*x.shape[:-1], outputs)),
        ("x.norm", None if before is None else before.weight, (inputs,)),
        ("norm", None if norm is None else norm.weight, (outputs,)),
    ):
        if tensor is not None:
            check_array(name, tensor, x.dtype, shape, x)
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
