"""Adds up the parts of attention whose keys were split among programs; the second half of attention.py."""

import triton
import triton.language as tl

from specbench.kernels import dependent
from specbench.kernels.tiles import LOG2_E, exp2

MINUS_INF = tl.constexpr(float("-inf"))
SPLITS_AT_ONCE = tl.constexpr(16)


@triton.jit(do_not_specialize=["n", "splits"])
def combine_kernel(
    parts, exponents, sinks, out, n, splits,
    HEADS: tl.constexpr, GROUP: tl.constexpr, VALUE_DIM: tl.constexpr, VALUE_LANES: tl.constexpr, LANES: tl.constexpr,
    SINKS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Adds up the parts of one row, that is, of one query of one head; see split_kernel. LANES: at least splits.

    Grid: B * n * HEADS * GROUP.
    """
    dependent.wait(EARLY)
    row = tl.program_id(0).to(tl.int64)
    heads: tl.constexpr = HEADS * GROUP
    request, i, own_head = row // (n * heads), row // heads % n, row % heads
    # Of the first split; those of the next lie n * GROUP cells further on.
    cell = (request * HEADS + own_head // GROUP) * splits * n * GROUP + i * GROUP + own_head % GROUP
    s = tl.arange(0, LANES)
    exponent = tl.load(exponents + cell + s.to(tl.int64) * n * GROUP, mask=s < splits, other=MINUS_INF)
    base = tl.max(exponent, axis=0)
    if SINKS:
        sink = tl.load(sinks + own_head).to(tl.float32) * LOG2_E
        base = tl.maximum(base, sink)
    base = tl.where(base == MINUS_INF, 0.0, base)
    total = tl.sum(exp2(exponent - base), axis=0)
    if SINKS:
        total += exp2(sink - base)
    acc = tl.zeros((VALUE_LANES,), tl.float32)
    if LANES <= SPLITS_AT_ONCE:  # a single wait for memory
        acc += _parts(parts, exponents, cell, s, splits, n * GROUP, base, VALUE_DIM, VALUE_LANES)
    else:
        for first in range(0, splits, SPLITS_AT_ONCE):
            now = first + tl.arange(0, SPLITS_AT_ONCE)
            acc += _parts(parts, exponents, cell, now, splits, n * GROUP, base, VALUE_DIM, VALUE_LANES)
    acc /= tl.where(total > 0, total, 1.0)
    d = tl.arange(0, VALUE_LANES)
    tl.store(out + row * VALUE_DIM + d, acc.to(out.dtype.element_ty), mask=d < VALUE_DIM)


@triton.jit
def _parts(parts, exponents, cell, s, splits, stride, base, VALUE_DIM: tl.constexpr, VALUE_LANES: tl.constexpr):
    """The weighted sum of the parts s of a row, the first of which is in ``cell``."""
    d, at = tl.arange(0, VALUE_LANES), cell + s.to(tl.int64) * stride
    held = (s < splits)[:, None] & (d < VALUE_DIM)[None, :]
    part = tl.load(parts + at[:, None] * VALUE_DIM + d[None, :], mask=held, other=0.0)
    weight = exp2(tl.load(exponents + at, mask=s < splits, other=MINUS_INF) - base)[:, None]
    return tl.sum(tl.where(weight > 0, weight * part, 0.0), axis=0)  # parts without weight are not written
