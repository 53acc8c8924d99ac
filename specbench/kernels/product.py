"""Products of a few rows with a matrix, as in the layers of a step of few requests. Twin: torch.nn.functional.linear.

Such a product takes as long as its weights take to be read, if enough of them are on their way at any time. Two things
see to that: tiles of weights are loaded ahead, and where a matrix has few outputs its inputs are split among programs
too. The last program of a tile to come adds the parts up, in their order, so that the result is the same bit for bit
each time.

More than one row goes through the GPU's matrix units, the weights as the left operand: that one's tiles are large, and
those of the right one can be as narrow as 16. Of one row, and of a few of float32, which these units round, each number
is multiplied and added by itself. Sums are float32.
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
def _weights(weight, n, k, outputs, inputs, last, EVEN: tl.constexpr):
    """A tile [outputs, inputs] of weights, 0 from input ``last`` on; rows beyond the matrix are its last one."""
    at = weight + tl.minimum(n, outputs - 1).to(tl.int64)[:, None] * inputs + k[None, :]
    if EVEN:
        loaded = tl.load(at, eviction_policy="evict_first")
    else:
        loaded = tl.load(at, mask=(k < last)[None, :], other=0.0, eviction_policy="evict_first")
    return loaded


@triton.jit
def _place(outputs, OUTPUTS: tl.constexpr):
    """Which tile of outputs a program has, and which part of the inputs."""
    tiles = tl.cdiv(outputs, OUTPUTS)
    return tl.program_id(0) % tiles, tl.program_id(0) // tiles


@triton.jit
def _leave(
    total, n, m, tile, split, bias, out, parts, counters, rows, outputs,
    ROWS: tl.constexpr, SPLITS: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    """Stores a tile [outputs, rows] of sums, once those of all SPLITS have come."""
    at, inside = m[None, :] * outputs + n[:, None], (m < rows)[None, :] & (n < outputs)[:, None]
    last = True
    if SPLITS > 1:
        tl.store(parts + split * ROWS * outputs + at, total, mask=inside)
        tl.debug_barrier()  # all threads have stored before one counts
        last = tl.atomic_add(counters + tile, 1, sem="acq_rel") == SPLITS - 1
    if last:
        if SPLITS > 1:
            tl.store(counters + tile, 0)  # for the next launch
            total = tl.load(parts + at, mask=inside, other=0.0, cache_modifier=".cg")
            for other in tl.static_range(1, SPLITS):
                total += tl.load(parts + other * ROWS * outputs + at, mask=inside, other=0.0, cache_modifier=".cg")
        if BIAS:
            total += tl.load(bias + n, mask=n < outputs, other=0.0).to(tl.float32)[:, None]
        tl.store(out + at, total.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["rows"])
def rows_kernel(
    x, weight, bias, out, parts, counters, rows, outputs, inputs, share,
    ROWS: tl.constexpr, OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, SPLITS: tl.constexpr, STAGES: tl.constexpr,
    EVEN: tl.constexpr, BIAS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """out [rows, outputs] = x [rows, inputs] @ weight [outputs, inputs].T + bias [outputs], of up to ROWS rows.

    All contiguous. If SPLITS > 1: parts float32 [SPLITS, ROWS, outputs], and counters int32, one for each tile of
    outputs, which are 0 before and after. EVEN: INPUTS divides the inputs. EARLY: see dependent.py.

    Grid: tiles of OUTPUTS * SPLITS, each of ``share`` inputs, a multiple of INPUTS.
    """
    dependent.wait(EARLY)
    tile, split = _place(outputs, OUTPUTS)
    n, m = tile * OUTPUTS + tl.arange(0, OUTPUTS), tl.arange(0, ROWS)
    first = split * share
    last = tl.minimum(first + share, inputs)
    total = tl.zeros((OUTPUTS, ROWS), tl.float32)
    for start in tl.range(first, last, INPUTS, num_stages=STAGES):
        k = start + tl.arange(0, INPUTS)
        held = _weights(weight, n, k, outputs, inputs, last, EVEN)
        seen = (m < rows)[None, :] if EVEN else (m < rows)[None, :] & (k < last)[:, None]
        total = _dot(held, tl.load(x + m[None, :] * inputs + k[:, None], mask=seen, other=0.0), total)
    _leave(total, n, m, tile, split, bias, out, parts, counters, rows, outputs, ROWS, SPLITS, BIAS)


@triton.jit
def row_kernel(
    x, weight, bias, out, parts, counters, outputs, inputs, share,
    OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, SPLITS: tl.constexpr, STAGES: tl.constexpr, EVEN: tl.constexpr,
    BIAS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """As rows_kernel, of one row."""
    dependent.wait(EARLY)
    tile, split = _place(outputs, OUTPUTS)
    n = tile * OUTPUTS + tl.arange(0, OUTPUTS)
    first = split * share
    last = tl.minimum(first + share, inputs)
    total = tl.zeros((OUTPUTS, INPUTS), tl.float32)
    for start in tl.range(first, last, INPUTS, num_stages=STAGES):
        k = start + tl.arange(0, INPUTS)
        held = _weights(weight, n, k, outputs, inputs, last, EVEN).to(tl.float32)
        if EVEN:
            given = tl.load(x + k)
        else:
            given = tl.load(x + k, mask=k < last, other=0.0)
        total += held * given.to(tl.float32)[None, :]
    summed = tl.sum(total, axis=1)[:, None]
    _leave(summed, n, tl.arange(0, 1), tile, split, bias, out, parts, counters, 1, outputs, 1, SPLITS, BIAS)


@triton.jit(do_not_specialize=["rows"])
def few_kernel(
    x, weight, bias, out, rows, outputs, inputs,
    ROWS: tl.constexpr, OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, STAGES: tl.constexpr, EVEN: tl.constexpr,
    BIAS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """As rows_kernel, of float32, without matrix units and with all inputs in each program. Grid: tiles of OUTPUTS."""
    dependent.wait(EARLY)
    n, m = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS), tl.arange(0, ROWS)
    total = tl.zeros((ROWS, OUTPUTS, INPUTS), tl.float32)
    for start in tl.range(0, inputs, INPUTS, num_stages=STAGES):
        k = start + tl.arange(0, INPUTS)
        held = _weights(weight, n, k, outputs, inputs, inputs, EVEN)
        seen = (m < rows)[:, None] if EVEN else (m < rows)[:, None] & (k < inputs)[None, :]
        given = tl.load(x + m[:, None] * inputs + k[None, :], mask=seen, other=0.0)
        total += held[None, :, :] * given[:, None, :]
    summed = tl.trans(tl.sum(total, axis=2))
    _leave(summed, n, m, 0, 0, bias, out, out, out, rows, outputs, ROWS, 1, BIAS)
