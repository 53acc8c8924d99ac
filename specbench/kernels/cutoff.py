"""The cutoff of top-k, top-p and min-p without a sort, and the row's normaliser. Twin: sampling/rows.py.

1. One read of the row: every tile leaves the largest logit of each group of 64 neighbouring tokens, and its sum of
   exponentials.
2. A program a row: the tokens above the (CANDIDATES + 1)-th largest of those maxima all lie in at most CANDIDATES
   groups. These few are read again, and the cutoff is found among them by bisection on the logits' bits: the highest
   value at which enough tokens, or enough mass, lie at or above. Where they are too few (a nucleus of hundreds of
   tokens), the bisection reads the whole row each time: slower, and still exact.

Bisection by bits rather than by value ends after as many steps as the dtype has bits, with a logit of the row, so that
ties are what LogitRows says: tokens tied with the cutoff are kept. Compare Qrita (arXiv 2602.01518), which searches a
gathered buffer of outliers by pivots.
"""

import triton
import triton.language as tl

from specbench.kernels import tiles as on_tiles
from specbench.kernels.emit import GROUP

CANDIDATES = tl.constexpr(64)  # groups
LOWEST = tl.constexpr(-(2**31))


@triton.jit
def _keys(logits, SHIFT):
    """int32 in the order of float32 logits; SHIFT drops the bits that their own dtype does not have."""
    bits = logits.to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)) >> SHIFT


@triton.jit
def _value(key, SHIFT):
    """The logit of a key, float32; bits that were dropped were 0 in the logit, so 1 in a negative one's key."""
    full = key << SHIFT
    full = tl.where(key < 0, full | ((1 << SHIFT) - 1), full)
    return (full ^ ((full >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit(do_not_specialize=["tiles"])
def survey_kernel(
    logits, stride, temperature, maxima, references, totals, vocabulary, tiles, TILE: tl.constexpr, TILES: tl.constexpr
):
    """Leaves maxima [n, TILES, TILE / GROUP], references and totals [n, TILES], all float32. Grid: n * tiles."""
    row, t = (tl.program_id(0) // tiles).to(tl.int64), tl.program_id(0) % tiles
    values = on_tiles.load(logits + row * stride, (), t * TILE, vocabulary, False, TILE)
    given = tl.load(temperature + row).to(tl.float64)
    scale = on_tiles.exp2_scale(tl.where(given == 0, 1.0, given))
    groups: tl.constexpr = TILE // GROUP
    largest = tl.max(tl.reshape(values, (groups, GROUP)), axis=1)
    cell = row * TILES + t
    tl.store(maxima + cell * groups + tl.arange(0, groups), largest)
    reference = tl.max(largest, axis=0) * scale
    weights = tl.where(values == float("-inf"), 0.0, on_tiles.exp2(tl.fma(values, scale, -reference)))
    tl.store(references + cell, reference)
    tl.store(totals + cell, tl.sum(weights, axis=0))


@triton.jit
def _row_sum(row, key, vocabulary, tiles, scale, reference, COUNT, SHIFT, TILE):
    """How many tokens (COUNT), or how much mass in units of 2^reference, lie at or above a key; float64."""
    total = tl.zeros((), tl.float64)
    for t in range(0, tiles):
        offsets = t * TILE + tl.arange(0, TILE)
        logits = on_tiles.load(row, (), t * TILE, vocabulary, False, TILE)
        above = (_keys(logits, SHIFT) >= key) & (offsets < vocabulary)
        weights = tl.where(above, 1.0, 0.0)
        if not COUNT:
            weights *= on_tiles.exp2(tl.fma(logits, scale, -reference))
        total += tl.sum(weights, axis=0).to(tl.float64)
    return total


@triton.jit
def _highest_in_row(row, need, low, high, vocabulary, tiles, scale, reference, COUNT, SHIFT, TILE):
    """The highest key in [low, high] at or above which the row has ``need``; it has at low."""
    while low < high:
        middle = low + (high - low + 1) // 2
        enough = _row_sum(row, middle, vocabulary, tiles, scale, reference, COUNT, SHIFT, TILE) >= need
        low, high = tl.where(enough, middle, low), tl.where(enough, high, middle - 1)
    return low


@triton.jit
def _highest(keys, weights, need, low, high):
    """The highest key in [low, high] at or above which the weights sum to ``need``; they do at low. low, high int64."""
    while low < high:
        middle = low + (high - low + 1) // 2
        enough = tl.sum(tl.where(keys >= middle, weights, 0.0), axis=0).to(tl.float64) >= need
        low, high = tl.where(enough, middle, low), tl.where(enough, high, middle - 1)
    return low


@triton.jit
def _gather(values, maxima_keys, present, above, chosen, group, vocabulary):
    """The logits [CANDIDATES * GROUP] of the groups whose largest reaches ``above``; -inf where there are fewer."""
    is_chosen = (maxima_keys >= above) & (present > 0)
    place = tl.cumsum(is_chosen.to(tl.int32), axis=0) - 1
    tl.store(chosen + place, group, mask=is_chosen)
    tl.debug_barrier()  # the list is read by other threads than the writers
    slot = tl.arange(0, CANDIDATES * GROUP)
    used = slot // GROUP < tl.sum(is_chosen.to(tl.int32), axis=0)
    token = tl.load(chosen + slot // GROUP, mask=used, other=0) * GROUP + slot % GROUP
    return tl.load(values + token, mask=used & (token < vocabulary), other=float("-inf")).to(tl.float32)


@triton.jit(do_not_specialize=["tiles"])
def cutoff_kernel(
    logits, stride, temperature, top_k, top_p, min_p, maxima, references, totals, chosen, cutoffs, log_normalizers,
    vocabulary, tiles, SHIFT: tl.constexpr, TILE: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """Cutoff and log_normalizer of one row a program, float64 [n]. maxima, references, totals: survey_kernel's.

    chosen: int32 [n, CANDIDATES] scratch. Rows that truncate nothing, and greedy ones, keep everything.
    """
    row = tl.program_id(0).to(tl.int64)
    groups: tl.constexpr = TILES * (TILE // GROUP)
    group = tl.arange(0, groups)
    t = tl.arange(0, TILES)
    values = logits + row * stride
    largest = tl.load(maxima + row * groups + group, mask=group < tiles * (TILE // GROUP), other=float("-inf"))
    tile_reference = tl.load(references + row * TILES + t, mask=t < tiles, other=float("-inf"))
    tile_total = tl.load(totals + row * TILES + t, mask=t < tiles, other=0.0)
    given = tl.load(temperature + row).to(tl.float64)
    k, p = tl.load(top_k + row), tl.load(top_p + row).to(tl.float64)
    least = tl.load(min_p + row).to(tl.float64)
    sane = tl.where(given == 0, 1.0, given)
    scale = on_tiles.exp2_scale(sane)
    most = tl.max(largest, axis=0)
    reference = tl.max(tile_reference, axis=0)
    shifted = tl.where(tile_total == 0, 0.0, tile_total * on_tiles.exp2(tile_reference - reference))
    whole = tl.sum(shifted.to(tl.float64), axis=0)  # NaN where the row holds NaN or +inf

    has_k, has_p, has_least = (k > 0) & (k < vocabulary), p < 1, least > 0
    cutoff, mass = tl.full((), float("-inf"), tl.float64), whole
    if (given > 0) & (has_k | has_p | has_least) & (whole == whole):
        high, lowest = _keys(most, SHIFT).to(tl.int64), tl.full((), LOWEST, tl.int64) >> SHIFT
        # min-p's bound is no logit of the row; rounded to one it must not fall below itself.
        bound = most.to(tl.float64) + sane * tl.log(tl.where(has_least, least, 1.0))
        least_key = _keys(bound.to(tl.float32), SHIFT).to(tl.int64)
        least_key += (_value(least_key.to(tl.int32), SHIFT).to(tl.float64) < bound).to(tl.int64)
        least_key = tl.where(has_least, tl.minimum(least_key, high), lowest)

        maxima_keys = _keys(largest, SHIFT)
        present = tl.where(largest > float("-inf"), 1.0, 0.0)
        above = lowest  # every token at or above this lies in a chosen group
        if tl.sum(present, axis=0) > CANDIDATES:
            smallest = tl.min(tl.where(present > 0, maxima_keys, high.to(tl.int32)), axis=0).to(tl.int64)
            above = _highest(maxima_keys, present, CANDIDATES + 1.0, smallest, high) + 1
        candidate = _gather(values, maxima_keys, present, above, chosen + row * CANDIDATES, group, vocabulary)
        keys = _keys(candidate, SHIFT)
        inside = (keys >= above) & (candidate > float("-inf"))
        ones = tl.where(inside, 1.0, 0.0)
        weights = tl.where(inside, on_tiles.exp2(tl.fma(candidate, scale, -reference)), 0.0)

        key, total = least_key, whole
        k_found = has_k & (tl.sum(ones, axis=0) >= k)
        if k_found:
            k_key = _highest(keys, ones, k.to(tl.float64), above, high)
            weights = tl.where(keys >= k_key, weights, 0.0)
            total = tl.sum(weights, axis=0).to(tl.float64)  # mass is counted after top-k
            key = tl.maximum(key, k_key)
        if has_p & (tl.sum(weights, axis=0).to(tl.float64) >= p * total) & (k_found | (has_k == 0)):
            key = tl.maximum(key, _highest(keys, weights, p * total, above, high))
        if (above > lowest) & ((key < above) | (has_k & has_p & (k_found == 0))):
            key, total = least_key, whole
            if has_k:
                k_key = _highest_in_row(
                    values, k.to(tl.float64), lowest, high, vocabulary, tiles, scale, reference, True, SHIFT, TILE
                )
                total = _row_sum(values, k_key, vocabulary, tiles, scale, reference, False, SHIFT, TILE)
                key = tl.maximum(key, k_key)
            if has_p:
                p_key = _highest_in_row(
                    values, p * total, lowest, high, vocabulary, tiles, scale, reference, False, SHIFT, TILE
                )
                key = tl.maximum(key, p_key)
            mass = _row_sum(values, key, vocabulary, tiles, scale, reference, False, SHIFT, TILE)
            cutoff = _value(key.to(tl.int32), SHIFT).to(tl.float64)
        else:
            mass = tl.sum(tl.where(keys >= key, weights, 0.0), axis=0).to(tl.float64)
            cutoff = tl.min(tl.where(inside & (keys >= key), candidate, float("inf")), axis=0).to(tl.float64)
    tl.store(cutoffs + row, cutoff)
    tl.store(log_normalizers + row, on_tiles.log_normalizer(mass, reference, sane) + 0.0 * (whole - whole))
