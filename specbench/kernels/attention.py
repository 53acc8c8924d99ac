"""Attention of a few new tokens to a long cache, each request at its own length. Twin: models/plain_attention.py.

A decoding step reads every cached key and value once for a handful of queries, so that its time is the time of reading
them. Three things keep it near that:

- The query heads that share a key head (grouped queries) are rows of one matrix product, so that keys are read once.
- The keys are split among programs. Each leaves its part of the sum with the logarithm of its weight, and a second
  kernel adds the parts up (attention_parts.py; flash-decoding: Dao et al. 2023, https://crfm.stanford.edu/2023/10/12/flashdecoding.html).
- Lengths are read on the device: a program whose keys lie beyond its request's length, or before its window, reads
  none.

In a layer the queries and keys of new tokens still have to be turned by their places (RoFormer, arXiv 2104.09864), and
keys and values to be written to the cache. The first kernel can do both (TURNED): each program writes the new tokens
among its own keys, and reads what it wrote.

Within a program the softmax is computed online (Milakov and Gimelshein, arXiv 1805.02867), in powers of 2 and float32.
Splits and tiles begin at multiples of fixed sizes. So for a given split the numbers of a request depend on its own
queries, keys and places alone, whatever stands beside it in the batch.
"""

import triton
import triton.language as tl

from specbench.kernels import dependent
from specbench.kernels.tiles import INTERPRETED, LOG2_E, PRECISION, exp2

MINUS_INF = tl.constexpr(float("-inf"))
FEWEST_ROWS = tl.constexpr(16)  # that a matrix product takes


@triton.jit
def _dot(a, b):
    """Matrix product, with sums in float32. NumPy, which interprets kernels, has no bfloat16."""
    if INTERPRETED:
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, input_precision=PRECISION)


@triton.jit
def _scores(q, keys):
    """q @ keys.T; of fewer rows than matrix products take, each number is multiplied and added by itself."""
    if q.shape[0] < FEWEST_ROWS:
        products = tl.sum(q[:, None, :] * keys[None, :, :], axis=2)
    else:
        products = _dot(q, tl.trans(keys))
    return products


@triton.jit
def _weighted(weights, values):
    """weights @ values, as _scores multiplies."""
    if weights.shape[0] < FEWEST_ROWS:
        sums = tl.sum(weights[:, :, None] * values[None, :, :], axis=1)
    else:
        sums = _dot(weights, values)
    return sums


@triton.jit
def _load(base, stride, j, end, DIM: tl.constexpr, LANES: tl.constexpr, MASKED: tl.constexpr):
    """Rows j of a matrix whose rows have DIM elements, [len(j), LANES]; 0 beyond DIM, and if MASKED from row end on."""
    d = tl.arange(0, LANES)
    at = base + j.to(tl.int64)[:, None] * stride + d[None, :]
    if MASKED:
        loaded = tl.load(at, mask=(j < end)[:, None] & (d < DIM)[None, :], other=0.0)
    elif DIM == LANES:
        loaded = tl.load(at)
    else:
        loaded = tl.load(at, mask=(d < DIM)[None, :], other=0.0)
    return loaded


@triton.jit
def _attend(
    q, k, v, k_stride, v_stride, start, end, most, total, acc, length, position, ancestors, scale, softcap, window,
    KEY_DIM: tl.constexpr, KEY_LANES: tl.constexpr, VALUE_DIM: tl.constexpr, VALUE_LANES: tl.constexpr,
    KEYS: tl.constexpr, MASKED: tl.constexpr, TREE: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr,
):  # fmt: skip
    """One tile of keys: the largest exponent, the sum of weights and the weighted values [rows] so far."""
    j = start + tl.arange(0, KEYS)
    keys = _load(k, k_stride, j, end, KEY_DIM, KEY_LANES, MASKED)
    scores = _scores(q, keys) * scale
    if SOFTCAP:  # softcap * tanh(score / softcap); scale holds the division, so that no tanh is needed
        scores = (1.0 - 2.0 / (exp2(scores * (2.0 * LOG2_E)) + 1.0)) * (softcap * LOG2_E)
    if MASKED:
        if TREE:
            among = j - length
            ancestor = ((ancestors[:, None] >> tl.minimum(tl.maximum(among, 0), 63).to(tl.int64)[None, :]) & 1) == 1
            seen = (among < 0)[None, :] | (ancestor & (among < 64)[None, :])
        else:
            seen = j[None, :] <= position[:, None]
        seen = seen & (j < end)[None, :]
        if WINDOW:
            seen = seen & (j[None, :] > position[:, None] - window)
        scores = tl.where(seen, scores, MINUS_INF)
    largest = tl.maximum(most, tl.max(scores, axis=1))
    base = tl.where(largest == MINUS_INF, 0.0, largest)  # nothing seen yet
    weights = exp2(scores - base[:, None])
    kept = exp2(most - base)
    values = _load(v, v_stride, j, end, VALUE_DIM, VALUE_LANES, MASKED)
    added = _weighted(weights.to(values.dtype), values)
    return largest, total * kept + tl.sum(weights, axis=1), acc * kept[:, None] + added


@triton.jit
def _turns(position, used, cos, sin, DIM: tl.constexpr, LANES: tl.constexpr):
    """Cosines and sines [len(position), LANES] of positions; 0 beyond DIM."""
    d = tl.arange(0, LANES)
    held, at = used[:, None] & (d < DIM)[None, :], position.to(tl.int64)[:, None] * DIM + d[None, :]
    turn = tl.load(cos + at, mask=held, other=0.0).to(tl.float32)
    return turn, tl.load(sin + at, mask=held, other=0.0).to(tl.float32)


@triton.jit
def _turned(base, used, turn, across, norm, epsilon, DIM: tl.constexpr, LANES: tl.constexpr, NORM: tl.constexpr):
    """Heads [rows, LANES] at ``base``, normed if NORM, then turned; float32, 0 beyond DIM."""
    d = tl.arange(0, LANES)
    partner = tl.where(d < DIM // 2, d + DIM // 2, d - DIM // 2)
    held = used[:, None] & (d < DIM)[None, :]
    own = tl.load(base[:, None] + d[None, :], mask=held, other=0.0).to(tl.float32)
    other = tl.load(base[:, None] + partner[None, :], mask=held, other=0.0).to(tl.float32)
    if NORM:
        scale = tl.rsqrt(tl.sum(own * own, axis=1) / DIM + epsilon)[:, None]
        own *= scale * tl.load(norm + d, mask=d < DIM, other=0.0).to(tl.float32)[None, :]
        other *= scale * tl.load(norm + partner, mask=d < DIM, other=0.0).to(tl.float32)[None, :]
    return own * turn + tl.where(d < DIM // 2, -other, other) * across


@triton.jit(do_not_specialize=["n", "visible", "window", "split", "splits", "row_tiles"])
def split_kernel(
    q, q_batch, q_head, q_row, k, k_batch, k_head, k_row, v, v_batch, v_head, v_row, places, sinks, out, parts,
    exponents, scale, softcap, n, visible, window, split, splits, row_tiles, cos, sin, q_norm, k_norm, cache_rows,
    epsilon,
    HEADS: tl.constexpr, GROUP: tl.constexpr, FIELDS: tl.constexpr, KEY_DIM: tl.constexpr, KEY_LANES: tl.constexpr,
    VALUE_DIM: tl.constexpr, VALUE_LANES: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, STAGES: tl.constexpr,
    WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, SINKS: tl.constexpr, WHOLE: tl.constexpr, TURNED: tl.constexpr,
    NORM: tl.constexpr, NEW: tl.constexpr, AHEAD: tl.constexpr, PLACED: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Attention of ROWS rows (queries times the heads of a group) to the keys of one split.

    q [B, HEADS * GROUP, n, KEY_DIM], k [B, HEADS, visible, KEY_DIM] and v [.., VALUE_DIM] at their strides, a stride of
    1 along the last; places int64 [B, n, FIELDS], or [B] with FIELDS 1: the lengths, behind which the tokens follow one
    another; sinks [HEADS * GROUP]. If WHOLE, one split has all keys, and out
    [B, n, HEADS * GROUP, VALUE_DIM] is written. If not, what is left is parts float32 [B, HEADS, splits, n * GROUP,
    VALUE_DIM] and exponents float32 [.., n * GROUP], log2 of the part's sum of weights. EARLY: see dependent.py.

    If TURNED: q [B, n, HEADS * GROUP + 2 * HEADS, KEY_DIM] are queries, keys and values of the n <= NEW tokens, with no
    room between them; cos and sin [positions, KEY_DIM]. New keys and values are written to k and v. If NORM: q_norm
    and k_norm [KEY_DIM] are weights of the RMSNorm of a head. If PLACED: request b has the row cache_rows[b] (int64
    [B]) of k and v. AHEAD: a split is at most KEYS keys, and those that are cached are read before the kernel in front
    has ended.

    Grid: B * HEADS * splits * row_tiles.
    """
    if not TURNED:
        dependent.wait(EARLY)
    TREE: tl.constexpr = FIELDS == 3
    program = tl.program_id(0)
    row_tile, part = program % row_tiles, program // row_tiles % splits
    pair = program // (row_tiles * splits)
    request, head = (pair // HEADS).to(tl.int64), (pair % HEADS).to(tl.int64)
    row = row_tile * ROWS + tl.arange(0, ROWS)
    i, used = row // GROUP, row < n * GROUP
    own_head = head * GROUP + row % GROUP
    place = places + (request * n + i) * FIELDS
    at = places + request if FIELDS == 1 else places + request * n * FIELDS
    length = tl.minimum(tl.maximum(tl.load(at), 0), visible).to(tl.int32)
    if FIELDS == 1:
        position = length + i
    else:
        position = tl.load(place + 1, mask=used, other=0).to(tl.int32)
    ancestors = position.to(tl.int64)
    if TREE:
        ancestors = tl.load(place + 2, mask=used, other=0)

    # The rows see no key from ``end`` on, and all see the keys up to the first of the new ones.
    first = row_tile * ROWS // GROUP
    last = 64 if TREE else tl.minimum(n, (row_tile * ROWS + ROWS - 1) // GROUP + 1)
    end = tl.minimum(tl.minimum((part + 1) * split, visible), length + last)
    begin = part * split
    whole = begin + tl.maximum(tl.minimum(end, length) - begin, 0) // KEYS * KEYS
    if WINDOW:
        oldest = length - window + 1 if TREE else length + first - window + 1
        begin = tl.maximum(begin, tl.maximum(oldest, 0) // KEYS * KEYS)
        whole = begin

    d = tl.arange(0, KEY_LANES)
    base = q + request * q_batch + own_head * q_head + i.to(tl.int64) * q_row
    cache_row = request
    if PLACED:
        cache_row = tl.load(cache_rows + request)
    k += cache_row * k_batch + head * k_head
    v += cache_row * v_batch + head * v_head
    if TURNED:
        # The kernel in front makes the projections alone: lengths, tables and the cache are there.
        within = used & (position < visible)
        turn, across = _turns(position, within, cos, sin, KEY_DIM, KEY_LANES)
        new = tl.arange(0, NEW)
        goal = length + new
        own = (new < n) & (goal >= part * split) & (goal < tl.minimum((part + 1) * split, visible))
        key_turn, key_across = _turns(goal, own, cos, sin, KEY_DIM, KEY_LANES)
        j, cached = part * split + tl.arange(0, KEYS), tl.minimum((part + 1) * split, length)
        if AHEAD:
            old_keys = _load(k, k_row, j, cached, KEY_DIM, KEY_LANES, True)
            old_values = _load(v, v_row, j, cached, VALUE_DIM, VALUE_LANES, True)
        dependent.wait(EARLY)
        queries = _turned(base, within, turn, across, q_norm, epsilon, KEY_DIM, KEY_LANES, NORM)
        queries = queries.to(q.dtype.element_ty)
        base = q + request * q_batch + (HEADS * GROUP + head) * q_head + new.to(tl.int64) * q_row
        keys = _turned(base, own, key_turn, key_across, k_norm, epsilon, KEY_DIM, KEY_LANES, NORM)
        keys = keys.to(k.dtype.element_ty)
        held, at = own[:, None] & (d < KEY_DIM)[None, :], goal.to(tl.int64)[:, None]
        values = tl.load(base[:, None] + HEADS * q_head + d[None, :], mask=held, other=0.0)
        tl.store(k + at * k_row + d[None, :], keys, mask=held)
        tl.store(v + at * v_row + d[None, :], values, mask=held)
    else:
        queries = tl.load(base[:, None] + d[None, :], mask=used[:, None] & (d < KEY_DIM)[None, :], other=0.0)
    if AHEAD:
        scores = tl.where((j < cached)[None, :], _scores(queries, old_keys) * scale, MINUS_INF)
        seen = own[None, :] & (new[None, :] <= i[:, None])
        new_scores = tl.where(seen, _scores(queries, keys) * scale, MINUS_INF)
        most = tl.maximum(tl.max(scores, axis=1), tl.max(new_scores, axis=1))
        base_score = tl.where(most == MINUS_INF, 0.0, most)[:, None]
        weights, new_weights = exp2(scores - base_score), exp2(new_scores - base_score)
        total = tl.sum(weights, axis=1) + tl.sum(new_weights, axis=1)
        acc = _weighted(weights.to(old_values.dtype), old_values) + _weighted(new_weights.to(values.dtype), values)
    else:
        if TURNED:
            tl.debug_barrier()  # what was written is read
        most = tl.full((ROWS,), MINUS_INF, tl.float32)
        total = tl.zeros((ROWS,), tl.float32)
        acc = tl.zeros((ROWS, VALUE_LANES), tl.float32)
        for start in tl.range(begin, whole, KEYS, num_stages=STAGES):
            most, total, acc = _attend(
                queries, k, v, k_row, v_row, start, end, most, total, acc, length, position, ancestors, scale, softcap,
                window, KEY_DIM, KEY_LANES, VALUE_DIM, VALUE_LANES, KEYS, False, TREE, WINDOW, SOFTCAP,
            )  # fmt: skip
        for start in tl.range(whole, end, KEYS, num_stages=STAGES):
            most, total, acc = _attend(
                queries, k, v, k_row, v_row, start, end, most, total, acc, length, position, ancestors, scale, softcap,
                window, KEY_DIM, KEY_LANES, VALUE_DIM, VALUE_LANES, KEYS, True, TREE, WINDOW, SOFTCAP,
            )  # fmt: skip

    d = tl.arange(0, VALUE_LANES)
    held = used[:, None] & (d < VALUE_DIM)[None, :]
    if WHOLE:
        if SINKS:
            sink = tl.load(sinks + own_head, mask=used, other=0.0).to(tl.float32) * LOG2_E
            base = tl.maximum(most, sink)
            acc *= exp2(most - base)[:, None]
            total = total * exp2(most - base) + exp2(sink - base)
        acc /= tl.where(total > 0, total, 1.0)[:, None]
        at = out + ((request * n + i) * (HEADS * GROUP) + own_head)[:, None] * VALUE_DIM + d[None, :]
        tl.store(at, acc.to(out.dtype.element_ty), mask=held)
    else:
        cell = (pair.to(tl.int64) * splits + part) * n * GROUP + row
        some = total > 0
        acc /= tl.where(some, total, 1.0)[:, None]
        tl.store(parts + cell[:, None] * VALUE_DIM + d[None, :], acc, mask=held & some[:, None])
        tl.store(exponents + cell, tl.where(some, most + tl.log2(total), MINUS_INF), mask=used)
