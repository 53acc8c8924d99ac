"""Device functions on tiles of a row: statistics, weights, drawing by inverse CDF, and the uniforms of core/rng.py.

Precision. A probability is exp2(logit * scale - reference) * factor: one fused multiply-add, rounded once, whose result
is small where there is mass; the factor makes up for the rounding of scale and reference. It is off by a few 1e-7
relative. Sums of a tile are float32 trees; everything across tiles and every threshold is float64. Tiles and trees are
fixed by the vocabulary alone, so a row's numbers do not depend on the batch that it is in.

Triton reads annotations as specialisations, so these functions carry none; shapes stand in their docstrings.
"""

import torch
import triton
import triton.language as tl
from triton.runtime.interpreter import InterpretedFunction

from specbench.kernels import masks

LOG2_E, LN_2 = tl.constexpr(1.4426950408889634), tl.constexpr(0.6931471805599453)
NO_INDEX = tl.constexpr(2**31 - 1)
STAGES = tl.constexpr(3)  # tiles on their way while one is worked on
HUGE = tl.constexpr(2.0**100)  # a sum beyond this was taken with a reference too small for float32


@triton.jit
def uniform(seed, position, offset, stream: tl.constexpr):
    """rng.Streams.uniform: 52 bits in the open interval (0, 1), float64. seed int64; position, offset integers."""
    c0, c1 = tl.broadcast(position.to(tl.uint32), offset.to(tl.uint32))
    zero = tl.zeros_like(c0)
    high, low, _, _ = tl.philox(seed, c0, c1, zero + stream, zero)
    bits = (high.to(tl.int64) << 20) | (low.to(tl.int64) >> 12)
    return (bits.to(tl.float64) + 0.5) * 2.220446049250313e-16


INTERPRETED = tl.constexpr(isinstance(uniform, InterpretedFunction))
# How matrix products of float32 are computed. NVIDIA's matrix units take TF32, so that each number is the sum of two,
# and of the four products the smallest is left out. That is as near as float32's own (Ootomo and Yokota 2022, arXiv
# 2203.03341).
PRECISION = tl.constexpr("ieee" if torch.version.hip else "tf32x3")


@triton.jit
def exp2(x):
    """2^x, float32, below 2^-126 flushed to 0: the hardware's own instruction, without tl.exp2's care for denormals."""
    if INTERPRETED:
        y = tl.exp2(x)
    else:
        y = tl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=r,r", [x], dtype=tl.float32, is_pure=True, pack=1)
    return y


@triton.jit
def load(row, mask, start, vocabulary, WHOLE, N: tl.constexpr):
    """N logits of a row from ``start`` on, float32, -inf where its mask (masks.py) bans one.

    WHOLE: all of them lie in the vocabulary, else those beyond it are -inf too.
    """
    offsets = start + tl.arange(0, N)
    if WHOLE:
        logits = tl.load(row + offsets)
    else:
        logits = tl.load(row + offsets, mask=offsets < vocabulary, other=float("-inf"))
    logits = logits.to(tl.float32)
    if len(mask) > 0:
        logits = tl.where(
            masks.allowed(mask, start, N, 128 // row.dtype.element_ty.primitive_bitwidth), logits, float("-inf")
        )
    return logits


@triton.jit
def leave_sum(row, mask, t, scale, reference, vocabulary, references, totals, WHOLE, TILE):
    """Leaves the reference and the sum of exp2(logit * scale - reference) of tile t of a row.

    Where the reference given is so far below the tile's largest logit that the sum is no number, it is taken again with
    the largest; NaN and +inf logits then leave NaN.
    """
    logits = load(row, mask, t * TILE, vocabulary, WHOLE, TILE)
    total = tl.sum(exp2(tl.fma(logits, scale, -reference)), axis=0)
    if (total < HUGE) == 0:
        logits = load(row, mask, t * TILE, vocabulary, WHOLE, TILE)
        reference = tl.max(logits, axis=0) * scale
        weights = tl.where(logits == float("-inf"), 0.0, exp2(tl.fma(logits, scale, -reference)))  # all may be -inf
        total = tl.sum(weights, axis=0)
    tl.store(references + t, reference)
    tl.store(totals + t, total)


@triton.jit
def leave_sums(row, mask, begin, end, scale, reference, vocabulary, references, totals, TILE):
    """leave_sum() of tiles [begin, end) of a row; a reference of no use (-inf) becomes each tile's largest logit."""
    reference = tl.where(reference > float("-inf"), reference, float("nan"))
    every = True
    if len(mask) > 3:
        some = masks.tiles_with_tokens(mask, begin, end, TILE)
        every = masks.is_every(some, begin, end)
        if not every:
            for t in range(begin, end):
                if masks.has_tokens(some, t - begin):
                    leave_sum(row, mask, t, scale, reference, vocabulary, references, totals, False, TILE)
                else:
                    tl.store(references + t, float("-inf"))
                    tl.store(totals + t, 0.0)
    if every:
        whole = tl.minimum(end, vocabulary // TILE)
        for t in tl.range(begin, whole, num_stages=STAGES):
            leave_sum(row, mask, t, scale, reference, vocabulary, references, totals, True, TILE)
        for t in range(tl.maximum(begin, whole), end):
            leave_sum(row, mask, t, scale, reference, vocabulary, references, totals, False, TILE)


@triton.jit
def first_largest(logits, offsets):
    """A tile's largest logit and its lowest index; (inf, NO_INDEX) where a logit is NaN or +inf.

    A tile of -inf alone has no index either, so that nothing is drawn from a row whose tokens are all banned.
    """
    largest = tl.max(logits, axis=0)
    index = tl.min(tl.where(logits == largest, offsets, NO_INDEX), axis=0)
    bad = (tl.max((logits != logits).to(tl.int32), axis=0) > 0) | (largest == float("inf"))
    index = tl.where(bad | (largest == float("-inf")), NO_INDEX, index)
    return tl.where(bad, float("inf"), largest), index


@triton.jit
def leave_largest(row, mask, begin, end, vocabulary, largest, places, TILE):
    """Leaves first_largest() of tiles [begin, end) of a row."""
    lanes = tl.arange(0, TILE)
    for t in tl.range(begin, end, num_stages=STAGES):
        most, place = first_largest(load(row, mask, t * TILE, vocabulary, False, TILE), t * TILE + lanes)
        tl.store(largest + t, most)
        tl.store(places + t, place)


@triton.jit
def exp2_scale(temperature):
    """exp(x / temperature) = exp2(x * scale), float32."""
    return (1.0 / temperature * LOG2_E).to(tl.float32)


@triton.jit
def exp2_form(temperature, normalizer):
    """(scale, reference, factor) with prob(x) = exp2(logit * scale - reference) * factor; float64 scalars or vectors.

    The factor is exact for logits near temperature * normalizer, where the mass is, and makes a NaN of no finite one.
    """
    scale, reference = exp2_scale(temperature), (normalizer * LOG2_E).to(tl.float32)
    lost = normalizer * temperature * (1.0 / temperature * LOG2_E - scale.to(tl.float64))
    lost = (lost + reference.to(tl.float64) - normalizer * LOG2_E) * LN_2  # below 1e-4, so that two terms will do
    return scale, reference, 1.0 + lost + 0.5 * lost * lost + 0.0 * (normalizer - normalizer)


@triton.jit
def pick(masses, u_total, N: tl.constexpr):
    """The place whose cumulative mass first exceeds u_total, and what u_total leaves inside it. masses float64 [N]."""
    cumulative = tl.cumsum(masses, axis=0)
    below = cumulative <= u_total
    place = tl.sum(below.to(tl.int32), axis=0)
    before = tl.max(tl.where(below, cumulative, 0.0), axis=0)
    if place == N:  # by rounding, or for NaN: the last place with mass is meant
        place = tl.max(tl.where(masses > 0, tl.arange(0, N), 0), axis=0)
        before = tl.sum(tl.where(tl.arange(0, N) < place, masses, 0.0), axis=0)
    return place, u_total - before


@triton.jit
def leave_group_masses(weights, groups, TILE: tl.constexpr, GROUP: tl.constexpr):
    """Leaves the sums of a tile's groups of GROUP neighbouring weights, float32 [TILE / GROUP]."""
    sums = tl.sum(tl.reshape(weights, (TILE // GROUP, GROUP)), axis=1)
    tl.store(groups + tl.arange(0, TILE // GROUP), sums)


@triton.jit
def leave_no_group_masses(groups, TILE: tl.constexpr, GROUP: tl.constexpr):
    """leave_group_masses() of a tile without any."""
    tl.store(groups + tl.arange(0, TILE // GROUP), tl.zeros((TILE // GROUP,), tl.float32))


@triton.jit
def log_normalizer(total, reference, temperature):
    """log sum exp(logit / temperature) from sum exp2(logit * scale - reference), float64."""
    scale = exp2_scale(temperature).to(tl.float64)
    reference = reference.to(tl.float64)
    lost = reference / scale * (1.0 / temperature * LOG2_E - scale)
    return (reference + lost) * LN_2 + tl.log(total)
