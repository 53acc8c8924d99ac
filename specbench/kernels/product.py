"""Products of a few rows with a matrix, as in the layers of a step of few requests. Twin: torch.nn.functional.linear.

What stands around a product in a layer can be part of its launch: SiLU of one half of its outputs times the other half
(GATED), the sum with what the layer was given (RESIDUAL), and an RMSNorm (Zhang and Sennrich 2019, arXiv 1910.07467).
A norm is shared by the products in front of it and behind it: the one in front leaves its outputs times the norm's
weights, and the sum of the squares of each tile (NORM); the one behind divides its outputs by the root of the mean
square (SQUARES). So the matrix units are given weights and rows as they are.

Such a product takes as long as its weights take to be read, if enough of them are on their way at any time. Two things
see to that: tiles of weights are loaded ahead, and where a matrix has few outputs its inputs are split among programs
too. The last program of a tile to come adds the parts up, in their order, so that the result is the same bit for bit
each time. Many rows of a small matrix are shared out among programs instead.

Rows go through the GPU's matrix units, the weights as the left operand: that one's tiles are large, and those of the
right one can be as narrow as 16. Of one row or two, and of a few of float32, each number is multiplied and added by
itself; each program then has whole rows, up to eight, and computes the norm in front by itself. Sums are float32.
"""

import triton
import triton.language as tl

from specbench.kernels import dependent
from specbench.kernels.tiles import INTERPRETED, PRECISION


@triton.jit
def _dot(a, b, total):
    """total + a @ b, with sums in float32. NumPy, which interprets kernels, has no bfloat16."""
    if INTERPRETED:
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, total, input_precision=PRECISION)


@triton.jit
def _weights(weight, n, k, outputs, inputs, last, EVEN: tl.constexpr, GATED: tl.constexpr):
    """A tile [outputs, inputs] of weights, 0 from input ``last`` on; rows beyond the matrix are its last one.

    If GATED, rows of the first and of the second half of the matrix take turns.
    """
    row = tl.minimum(n, outputs - 1)
    if GATED:
        row = row % 2 * (outputs // 2) + row // 2
    at = weight + row.to(tl.int64)[:, None] * inputs + k[None, :]
    if EVEN:
        loaded = tl.load(at, eviction_policy="evict_first")
    else:
        loaded = tl.load(at, mask=(k < last)[None, :], other=0.0, eviction_policy="evict_first")
    return loaded


@triton.jit
def _around(
    bias, residual, squares, n, m, rows, outputs, parts_of_squares,
    BIAS: tl.constexpr, RESIDUAL: tl.constexpr, SQUARES: tl.constexpr,
):  # fmt: skip
    """What is added to a tile [outputs, rows] in the end, and sums of squares [SQUARES, rows]; both are read early."""
    added, parts = 0.0, 0.0
    if BIAS:
        added += tl.load(bias + n, mask=n < outputs, other=0.0).to(tl.float32)[:, None]
    if RESIDUAL:
        inside = (m < rows)[None, :] & (n < outputs)[:, None]
        added += tl.load(residual + m[None, :] * outputs + n[:, None], mask=inside, other=0.0).to(tl.float32)
    if SQUARES:
        part = tl.arange(0, SQUARES)
        inside = (part < parts_of_squares)[:, None] & (m < rows)[None, :]
        parts = tl.load(squares + part[:, None] * rows + m[None, :], mask=inside, other=0.0)
    return added, parts


@triton.jit
def _leave(
    total, added, squares, n, m, tile, norm, out, weighted, sums, rows, outputs, inputs, epsilon,
    SQUARES: tl.constexpr, GATED: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    """Stores what becomes of a tile [outputs, rows] of sums."""
    if SQUARES:
        total *= tl.rsqrt(tl.sum(squares, axis=0) / inputs + epsilon)[None, :]
    total += added
    if GATED:
        _store_gated(total, n, m, out, rows, outputs)
    else:
        at, inside = m[None, :] * outputs + n[:, None], (m < rows)[None, :] & (n < outputs)[:, None]
        rounded = total.to(out.dtype.element_ty)
        tl.store(out + at, rounded, mask=inside)
        if NORM:
            held = rounded.to(tl.float32)
            scales = tl.load(norm + n, mask=n < outputs, other=0.0).to(tl.float32)[:, None]
            tl.store(weighted + at, (held * scales).to(out.dtype.element_ty), mask=inside)
            tl.store(sums + tile * rows + m, tl.sum(tl.where(inside, held * held, 0.0), axis=0), mask=m < rows)


@triton.jit
def _store_gated(total, n, m, out, rows, outputs):
    """Stores silu(gate) * up [outputs / 2, rows], whose rows take turns in a tile of sums."""
    pairs = tl.reshape(total, (total.shape[0] // 2, 2, total.shape[1]))
    gate, up = tl.split(tl.permute(pairs, (0, 2, 1)))
    output = tl.min(n, axis=0) // 2 + tl.arange(0, total.shape[0] // 2)
    inside = (m < rows)[None, :] & (output < outputs // 2)[:, None]
    gated = gate * tl.sigmoid(gate) * up
    tl.store(out + m[None, :] * (outputs // 2) + output[:, None], gated.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["rows", "parts_of_squares"])
def rows_kernel(
    x, weight, bias, residual, squares, norm, out, weighted, sums, parts, counters, rows, outputs, inputs, share,
    parts_of_squares, epsilon,
    ROWS: tl.constexpr, OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, SPLITS: tl.constexpr, STAGES: tl.constexpr,
    EVEN: tl.constexpr, BIAS: tl.constexpr, RESIDUAL: tl.constexpr, SQUARES: tl.constexpr, GATED: tl.constexpr,
    NORM: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """out [rows, outputs] = x [rows, inputs] @ weight [outputs, inputs].T + bias [outputs], all contiguous.

    If SQUARES, which is at least ``parts_of_squares``: squares float32 [parts_of_squares, rows] add up to the sums of
    the squares of what x was before it was multiplied by a norm's weights; the product is divided by the root of their
    mean plus epsilon. If RESIDUAL, residual [rows, outputs] is added. If GATED, out [rows, outputs / 2] is SiLU of the
    first half of the outputs times the second half. If NORM: weighted [rows, outputs] is out times norm [outputs], and
    sums float32 [tiles of outputs, rows] are those of the squares of out.

    If SPLITS > 1: parts float32 [SPLITS, rows, outputs] and counters int32, one for each tile, which are 0 before and
    after. EVEN: INPUTS divides the inputs. EARLY: see dependent.py.

    Grid: tiles of OUTPUTS * SPLITS, each of ``share`` inputs, a multiple of INPUTS, * tiles of ROWS.
    """
    dependent.wait(EARLY)
    row_tiles, tiles = tl.cdiv(rows, ROWS), tl.cdiv(outputs, OUTPUTS)
    row_tile, column = tl.program_id(0) % row_tiles, tl.program_id(0) // row_tiles
    tile, split = column % tiles, column // tiles
    n, m = tile * OUTPUTS + tl.arange(0, OUTPUTS), row_tile * ROWS + tl.arange(0, ROWS)
    added, of_squares = _around(bias, residual, squares, n, m, rows, outputs, parts_of_squares, BIAS, RESIDUAL, SQUARES)
    first = split * share
    last = tl.minimum(first + share, inputs)
    total = tl.zeros((OUTPUTS, ROWS), tl.float32)
    for start in tl.range(first, last, INPUTS, num_stages=STAGES):
        k = start + tl.arange(0, INPUTS)
        held = _weights(weight, n, k, outputs, inputs, last, EVEN, GATED)
        seen = (m < rows)[None, :] if EVEN else (m < rows)[None, :] & (k < last)[:, None]
        given = tl.load(x + m[None, :] * inputs + k[:, None], mask=seen, other=0.0)
        total = _dot(held, given, total)
    is_last = True
    if SPLITS > 1:
        at, inside = m[None, :] * outputs + n[:, None], (m < rows)[None, :] & (n < outputs)[:, None]
        tl.store(parts + split * rows * outputs + at, total, mask=inside)
        tl.debug_barrier()  # all threads have stored before one counts
        counter = counters + tile * row_tiles + row_tile
        is_last = tl.atomic_add(counter, 1, sem="acq_rel") == SPLITS - 1
        if is_last:
            tl.store(counter, 0)  # for the next launch
            total = tl.load(parts + at, mask=inside, other=0.0, cache_modifier=".cg")
            for other in tl.static_range(1, SPLITS):
                total += tl.load(parts + other * rows * outputs + at, mask=inside, other=0.0, cache_modifier=".cg")
    if is_last:
        _leave(
            total, added, of_squares, n, m, tile, norm, out, weighted, sums, rows, outputs, inputs, epsilon, SQUARES,
            GATED, NORM,
        )  # fmt: skip


@triton.jit(do_not_specialize=["rows"])
def few_kernel(
    x, weight, bias, residual, before, norm, out, weighted, sums, rows, outputs, inputs, epsilon,
    ROWS: tl.constexpr, ROW_TILES: tl.constexpr, LANES: tl.constexpr, OUTPUTS: tl.constexpr, INPUTS: tl.constexpr,
    STAGES: tl.constexpr, EVEN: tl.constexpr, BIAS: tl.constexpr, RESIDUAL: tl.constexpr, NORMED: tl.constexpr,
    GATED: tl.constexpr, NORM: tl.constexpr, WHOLE: tl.constexpr, IN_TURN: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """As rows_kernel, without matrix units, with all inputs in each program. Grid: tiles of OUTPUTS * ROW_TILES.

    ROW_TILES: of ROWS rows. LANES: at least ROWS. If NORMED, the product is of an RMSNorm of x with the weights before
    [inputs]. WHOLE: INPUTS is at least the inputs; weights are then read before others have ended. IN_TURN: a
    program's rows are multiplied one after another, as is faster within a warp; needs WHOLE.
    """
    row_tile, tile, lane = tl.program_id(0) % ROW_TILES, tl.program_id(0) // ROW_TILES, tl.arange(0, LANES)
    n, k = tile * OUTPUTS + tl.arange(0, OUTPUTS), tl.arange(0, INPUTS)
    m = tl.where(lane < ROWS, row_tile * ROWS + lane, rows)  # lanes without a row are behind the last one
    if WHOLE:
        held = _weights(weight, n, k, outputs, inputs, inputs, EVEN, GATED).to(tl.float32)
        if NORMED:
            held *= tl.load(before + k, mask=k < inputs, other=0.0).to(tl.float32)[None, :]
    dependent.wait(EARLY)
    added, _ = _around(bias, residual, x, n, m, rows, outputs, 0, BIAS, RESIDUAL, 0)
    if IN_TURN:
        total = tl.zeros((OUTPUTS, LANES), tl.float32)
        for i in tl.static_range(ROWS):  # not lanes without a row, whose sums would go from thread to thread too
            row = tl.minimum(row_tile * ROWS + i, rows - 1)
            given = tl.load(x + row * inputs + k, mask=k < inputs, other=0.0).to(tl.float32)
            products = tl.sum(held * given[None, :], axis=1)
            if NORMED:
                products *= tl.rsqrt(tl.sum(given * given, axis=0) / inputs + epsilon)
            total = tl.where((lane == i)[None, :], products[:, None], total)
    else:
        if WHOLE:
            seen = (m < rows)[:, None] & (k < inputs)[None, :]
            given = tl.load(x + m[:, None] * inputs + k[None, :], mask=seen, other=0.0).to(tl.float32)
            squared = given * given
            added_up = held[None, :, :] * given[:, None, :]
        else:
            squared = tl.zeros((LANES, INPUTS), tl.float32)
            added_up = tl.zeros((LANES, OUTPUTS, INPUTS), tl.float32)
            for start in tl.range(0, inputs, INPUTS, num_stages=STAGES):
                place = start + k
                held = _weights(weight, n, place, outputs, inputs, inputs, EVEN, GATED).to(tl.float32)
                seen = (m < rows)[:, None] if EVEN else (m < rows)[:, None] & (place < inputs)[None, :]
                given = tl.load(x + m[:, None] * inputs + place[None, :], mask=seen, other=0.0).to(tl.float32)
                if NORMED:
                    squared += given * given
                    given *= tl.load(before + place, mask=place < inputs, other=0.0).to(tl.float32)[None, :]
                added_up += held[None, :, :] * given[:, None, :]
        total = tl.trans(tl.sum(added_up, axis=2))
        if NORMED:
            total *= tl.rsqrt(tl.sum(squared, axis=1) / inputs + epsilon)[None, :]
    _leave(
        total, added, 0.0, n, m, tile, norm, out, weighted, sums, rows, outputs, inputs, epsilon, 0, GATED, NORM,
    )  # fmt: skip
