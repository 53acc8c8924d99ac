"""Products of a few rows with a matrix, as in the layers of a step of few requests. Twin: torch.nn.functional.linear.

What stands around a product in a layer can be part of its launch: the norm of its input (NORM), SiLU of one half of its
outputs times the other half (GATED), and the sum with what the layer was given (RESIDUAL).

Such a product takes as long as its weights take to be read, if enough of them are on their way at any time. Two things
see to that: tiles of weights are loaded ahead, and where a matrix has few outputs its inputs are split among programs
too. The last program of a tile to come adds the parts up, in their order, so that the result is the same bit for bit
each time.

Rows go through the GPU's matrix units, the weights as the left operand: that one's tiles are large, and those of the
right one can be as narrow as 16. Of one row or two, and of a few of float32, which these units round, each number is
multiplied and added by itself. Sums are float32.
"""

import triton
import triton.language as tl

from specbench.kernels import dependent
from specbench.kernels.tiles import INTERPRETED


@triton.jit
def _dot(a, b, total):
    """total + a @ b in float32 without TF32. NumPy, which interprets kernels, has no bfloat16."""
    if INTERPRETED:
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, total, input_precision="ieee")


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
def _normed(given, norm, k, last, squares, AXIS: tl.constexpr, EVEN: tl.constexpr, NORM: tl.constexpr):
    """If NORM: a tile of the input times the norm's weights, in float32, and ``squares`` with its squares added."""
    if NORM:
        weights = (
            tl.load(norm + k).to(tl.float32) if EVEN else tl.load(norm + k, mask=k < last, other=0.0).to(tl.float32)
        )
        wide = given.to(tl.float32)
        squares += wide * wide
        given = wide * tl.expand_dims(weights, AXIS)
    return given, squares


@triton.jit
def _place(outputs, OUTPUTS: tl.constexpr):
    """Which tile of outputs a program has, and which part of the inputs."""
    tiles = tl.cdiv(outputs, OUTPUTS)
    return tl.program_id(0) % tiles, tl.program_id(0) // tiles


@triton.jit
def _added(bias, residual, n, m, rows, outputs, BIAS: tl.constexpr, RESIDUAL: tl.constexpr):
    """What is added to a tile [outputs, rows] in the end, read early; 0 for nothing."""
    added = 0.0
    if BIAS:
        added += tl.load(bias + n, mask=n < outputs, other=0.0).to(tl.float32)[:, None]
    if RESIDUAL:
        inside = (m < rows)[None, :] & (n < outputs)[:, None]
        added += tl.load(residual + m[None, :] * outputs + n[:, None], mask=inside, other=0.0).to(tl.float32)
    return added


@triton.jit
def _leave(
    total, squares, added, n, m, tile, split, out, parts, counters, rows, outputs, inputs, epsilon,
    ROWS: tl.constexpr, SPLITS: tl.constexpr, NORM: tl.constexpr, GATED: tl.constexpr,
):  # fmt: skip
    """Stores what becomes of a tile [outputs, rows] of sums, once those of all SPLITS have come.

    squares [rows]: the sum of the squares of this part of the input, if NORM.
    """
    at, inside = m[None, :] * outputs + n[:, None], (m < rows)[None, :] & (n < outputs)[:, None]
    of_squares = parts + SPLITS * ROWS * outputs + tile * SPLITS * ROWS + m
    last = True
    if SPLITS > 1:
        tl.store(parts + split * ROWS * outputs + at, total, mask=inside)
        if NORM:
            tl.store(of_squares + split * ROWS, squares)
        tl.debug_barrier()  # all threads have stored before one counts
        last = tl.atomic_add(counters + tile, 1, sem="acq_rel") == SPLITS - 1
    if last:
        if SPLITS > 1:
            tl.store(counters + tile, 0)  # for the next launch
            total = tl.load(parts + at, mask=inside, other=0.0, cache_modifier=".cg")
            for other in tl.static_range(1, SPLITS):
                total += tl.load(parts + other * ROWS * outputs + at, mask=inside, other=0.0, cache_modifier=".cg")
            if NORM:
                squares = tl.load(of_squares, cache_modifier=".cg")
                for other in tl.static_range(1, SPLITS):
                    squares += tl.load(of_squares + other * ROWS, cache_modifier=".cg")
        if NORM:
            total *= tl.rsqrt(squares / inputs + epsilon)[None, :]
        total += added
        if GATED:
            _store_gated(total, n, m, out, rows, outputs)
        else:
            tl.store(out + at, total.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _store_gated(total, n, m, out, rows, outputs):
    """Stores silu(gate) * up [outputs / 2, rows], whose rows take turns in a tile of sums."""
    pairs = tl.reshape(total, (total.shape[0] // 2, 2, total.shape[1]))
    gate, up = tl.split(tl.permute(pairs, (0, 2, 1)))
    output = tl.min(n, axis=0) // 2 + tl.arange(0, total.shape[0] // 2)
    inside = (m < rows)[None, :] & (output < outputs // 2)[:, None]
    gated = gate * tl.sigmoid(gate) * up
    tl.store(out + m[None, :] * (outputs // 2) + output[:, None], gated.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["rows"])
def rows_kernel(
    x, weight, bias, norm, residual, out, parts, counters, rows, outputs, inputs, share, epsilon,
    ROWS: tl.constexpr, OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, SPLITS: tl.constexpr, STAGES: tl.constexpr,
    EVEN: tl.constexpr, BIAS: tl.constexpr, NORM: tl.constexpr, RESIDUAL: tl.constexpr, GATED: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """out [rows, outputs] = x [rows, inputs] @ weight [outputs, inputs].T + bias [outputs], of up to ROWS rows.

    All contiguous. If NORM, x is divided by the root of its mean square plus epsilon, and multiplied by norm [inputs].
    If RESIDUAL, residual [rows, outputs] is added. If GATED, out [rows, outputs / 2] is SiLU of the first half of the
    outputs times the second half.

    If SPLITS > 1: parts float32 [SPLITS, ROWS, outputs], behind them if NORM [tiles, SPLITS, ROWS], and counters int32,
    one for each tile of outputs, which are 0 before and after. EVEN: INPUTS divides the inputs. EARLY: see
    dependent.py.

    Grid: tiles of OUTPUTS * SPLITS, each of ``share`` inputs, a multiple of INPUTS.
    """
    dependent.wait(EARLY)
    tile, split = _place(outputs, OUTPUTS)
    n, m = tile * OUTPUTS + tl.arange(0, OUTPUTS), tl.arange(0, ROWS)
    added = _added(bias, residual, n, m, rows, outputs, BIAS, RESIDUAL)
    first = split * share
    last = tl.minimum(first + share, inputs)
    total = tl.zeros((OUTPUTS, ROWS), tl.float32)
    squares = tl.zeros((INPUTS, ROWS), tl.float32)
    for start in tl.range(first, last, INPUTS, num_stages=STAGES):
        k = start + tl.arange(0, INPUTS)
        held = _weights(weight, n, k, outputs, inputs, last, EVEN, GATED)
        seen = (m < rows)[None, :] if EVEN else (m < rows)[None, :] & (k < last)[:, None]
        given = tl.load(x + m[None, :] * inputs + k[:, None], mask=seen, other=0.0)
        given, squares = _normed(given, norm, k, last, squares, 1, EVEN, NORM)
        total = _dot(held, given.to(held.dtype), total)
    _leave(
        total, tl.sum(squares, axis=0), added, n, m, tile, split, out, parts, counters, rows, outputs, inputs, epsilon,
        ROWS, SPLITS, NORM, GATED,
    )  # fmt: skip


@triton.jit(do_not_specialize=["rows"])
def few_kernel(
    x, weight, bias, norm, residual, out, rows, outputs, inputs, epsilon,
    ROWS: tl.constexpr, OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, STAGES: tl.constexpr, EVEN: tl.constexpr,
    BIAS: tl.constexpr, NORM: tl.constexpr, RESIDUAL: tl.constexpr, GATED: tl.constexpr, WHOLE: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """As rows_kernel, without matrix units and with all inputs in each program. Grid: tiles of OUTPUTS.

    WHOLE: INPUTS is at least the inputs. Weights, which no kernel writes, are then read before others have ended.
    """
    n, m, k = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS), tl.arange(0, ROWS), tl.arange(0, INPUTS)
    if WHOLE:
        held = _weights(weight, n, k, outputs, inputs, inputs, EVEN, GATED)
    dependent.wait(EARLY)
    added = _added(bias, residual, n, m, rows, outputs, BIAS, RESIDUAL)
    squares = tl.zeros((ROWS, INPUTS), tl.float32)
    if WHOLE:
        given = tl.load(
            x + m[:, None] * inputs + k[None, :], mask=(m < rows)[:, None] & (k < inputs)[None, :], other=0.0
        )
        given, squares = _normed(given, norm, k, inputs, squares, 0, EVEN, NORM)
        total = tl.sum(held.to(tl.float32)[None, :, :] * given.to(tl.float32)[:, None, :], axis=2)
    else:
        sums = tl.zeros((ROWS, OUTPUTS, INPUTS), tl.float32)
        for start in tl.range(0, inputs, INPUTS, num_stages=STAGES):
            place = start + k
            tile = _weights(weight, n, place, outputs, inputs, inputs, EVEN, GATED).to(tl.float32)
            seen = (m < rows)[:, None] if EVEN else (m < rows)[:, None] & (place < inputs)[None, :]
            given = tl.load(x + m[:, None] * inputs + place[None, :], mask=seen, other=0.0)
            given, squares = _normed(given, norm, place, inputs, squares, 0, EVEN, NORM)
            sums += tile[None, :, :] * given.to(tl.float32)[:, None, :]
        total = tl.sum(sums, axis=2)
    _leave(
        tl.trans(total), tl.sum(squares, axis=1), added, n, m, 0, 0, out, out, out, rows, outputs, inputs, epsilon,
        ROWS, 1, NORM, GATED,
    )  # fmt: skip
