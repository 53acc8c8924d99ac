"""The scoring half of verification: sums over the rows of draft tokens, then the accept tests of each request."""

import triton
import triton.language as tl

from specbench.kernels import masks
from specbench.kernels import tiles as on_tiles
from specbench.kernels.tiles import NO_INDEX

ACCEPT = tl.constexpr(1)  # rng.Stream.ACCEPT
BY_MASS = tl.constexpr(-1)  # outcome of a request whose tau depends on residual masses (block rule)


@triton.jit
def draft_side(q, block, request, drafted, first, vocabulary, HAS_Q, GAMMA):
    """Loads the draft's part of the accept tests: (ids, logits, temperatures, normalisers, cutoffs, seed, position).

    It comes before the request's scores, since each load costs a trip to memory.
    """
    i = tl.arange(0, GAMMA)
    rows, valid = first + i, i < drafted
    x = drafted_ids(block, rows, valid, vocabulary)
    seed, position = tl.load(block.seeds + request), tl.load(block.positions + request)
    logit = tl.full((GAMMA,), 0.0, tl.float64)
    temperature, normalizer, cutoff = logit, logit, logit
    if HAS_Q:
        temperature = tl.load(q.temperature + rows, mask=valid, other=0.0).to(tl.float64)
        normalizer = tl.load(q.log_normalizer + rows, mask=valid, other=0.0).to(tl.float64)
        cutoff = tl.load(q.cutoff + rows, mask=valid, other=0.0).to(tl.float64)
        logit = _logit(q, rows, x)
    return x, logit, temperature, normalizer, cutoff, seed, position


@triton.jit
def drafted_ids(block, rows, valid, vocabulary):
    """The draft tokens of the given rows, int32; -1 for an invalid row or an id outside of the vocabulary."""
    x = tl.load(block.token_ids + rows, mask=valid, other=-1)
    return tl.where((x >= 0) & (x < vocabulary), x, -1).to(tl.int32)


@triton.jit
def _logit(source, rows, x):
    """Each row's logit of its draft token x, float64; -inf if x is -1 or banned."""
    logit = tl.load(source.logits + rows * source.stride + x, mask=x >= 0, other=float("-inf")).to(tl.float64)
    if source.mask is not None:
        logit = tl.where(masks.allows(source.mask, rows, x), logit, float("-inf"))
    return logit


@triton.jit
def score(p, block, ws, request, drafted, first, item, chunks, chunk, tiles, vocabulary, KNOWN, TILE, TILES, GAMMA):
    """Stores the sums of one chunk of a drafted row; returns how many chunks of the request were done before, or -1.

    Of a greedy row it stores the largest logits; of others whose normaliser is known, nothing.
    """
    i = item // chunks
    before = tl.full((), -1, tl.int32)
    if i < drafted:
        row, begin = first + request + i, (item % chunks) * chunk
        end = tl.minimum(begin + chunk, tiles)
        cells = (request * GAMMA + i) * TILES
        logits, mask = p.logits + row * p.stride, masks.mask_of(p, row)
        temperature = tl.load(p.temperature + row).to(tl.float64)
        x = drafted_ids(block, first + i, i < drafted, vocabulary)
        # The draft token's logit is rarely far below the largest, and replaces a search for it.
        logit = _logit(p, row, x).to(tl.float32)
        if temperature == 0:
            on_tiles.leave_largest(logits, mask, begin, end, vocabulary, ws.reference + cells, ws.place + cells, TILE)
        elif not KNOWN:
            scale = on_tiles.exp2_scale(temperature)
            on_tiles.leave_sums(
                logits, mask, begin, end, scale, logit * scale, vocabulary, ws.reference + cells, ws.total + cells, TILE
            )  # fmt: skip
        tl.debug_barrier()  # every thread's sums, before one thread counts this chunk
        before = tl.atomic_add(ws.scored + request, 1, sem="acq_rel")
    return before


@triton.jit
def draft_probs(given, HAS_Q, GAMMA):
    """q of each draft token, the form of its row (float64 factor 0 for a one-hot row), and its uniform; all [GAMMA]."""
    _, logit, temperature, normalizer, cutoff, seed, position = given
    q_x = tl.full((GAMMA,), 1.0, tl.float64)
    scale, reference, factor = q_x.to(tl.float32), q_x.to(tl.float32), 0.0 * q_x
    if HAS_Q:
        random = temperature > 0  # a greedy draft is one-hot at what it drafted
        temperature = tl.where(random, temperature, 1.0)
        dense = tl.exp(logit / temperature - normalizer)
        q_x = tl.where(random, tl.where(logit < cutoff, 0.0, dense), q_x)
        scale, reference, factor = on_tiles.exp2_form(temperature, normalizer)
        factor = tl.where(random, factor, 0.0)
    return q_x, scale, reference, factor, on_tiles.uniform(seed, position, tl.arange(0, GAMMA), ACCEPT)


@triton.jit
def accept(p, x, of_draft, ws, request, drafted, first, tiles, BLOCK, KNOWN, TILES, GAMMA):
    """Makes the accept tests of a scored request; stores the form of its rows and returns its outcome."""
    i = tl.arange(0, GAMMA)
    valid = i < drafted
    rows, slots = first + request + i, request * GAMMA + i
    q_x, q_scale, q_reference, q_factor, u = of_draft
    tl.store(ws.form + 8 * slots + 3, q_scale, mask=valid)
    tl.store(ws.form + 8 * slots + 4, q_reference, mask=valid)
    tl.store(ws.form + 8 * slots + 5, q_factor.to(tl.float32), mask=valid)
    p_x = _drafted_probs(p, ws, rows, slots, x, q_factor, valid, tiles, KNOWN, TILES)
    p_x = tl.where(x < 0, 0.0, p_x)  # rejected, also in a row without valid probabilities
    if BLOCK:
        outcome = _block_outcome(ws, i, slots, valid, drafted, p_x, q_x, u)
    else:
        refused = valid & ((u * q_x < p_x) == 0)
        outcome = 1 + tl.min(tl.where(refused, i, drafted.to(tl.int32)), axis=0)
    return outcome


@triton.jit
def _drafted_probs(p, ws, rows, slots, x, q_factor, valid, tiles, KNOWN, TILES):
    """p of each draft token, float64; stores the form of each row, or its argmax."""
    logit = _logit(p, rows, x)
    temperature = tl.load(p.temperature + rows, mask=valid, other=1.0).to(tl.float64)
    t = tl.arange(0, TILES)
    cells, present = slots[:, None] * TILES + t[None, :], valid[:, None] & (t < tiles)[None, :]
    # .cg: another multiprocessor wrote these, and the first-level cache may be stale.
    references = tl.load(ws.reference + cells, mask=present, other=float("-inf"), cache_modifier=".cg")
    greedy = temperature == 0
    temperature = tl.where(greedy, 1.0, temperature)
    most = tl.max(references, axis=1)
    if KNOWN:
        normalizer = tl.load(p.log_normalizer + rows, mask=valid, other=0.0).to(tl.float64)
        cutoff = tl.load(p.cutoff + rows, mask=valid, other=0.0).to(tl.float64)
        scale, reference, factor = on_tiles.exp2_form(temperature, normalizer)
        p_x = tl.where(logit < cutoff, 0.0, tl.exp(logit / temperature - normalizer))
    else:
        totals = tl.load(ws.total + cells, mask=present, other=0.0, cache_modifier=".cg")
        shifted = totals * on_tiles.exp2(references - most[:, None])
        sums = tl.sum(tl.where(totals == 0, 0.0, shifted).to(tl.float64), axis=1)  # an empty tile's shift may be NaN
        scale, reference, factor = on_tiles.exp2_scale(temperature), most, 1.0 / sums
        p_x = tl.exp((logit * scale.to(tl.float64) - most) * on_tiles.LN_2) * factor
    factor += 0.0 * q_factor  # NaN in q makes the whole row NaN
    tl.store(ws.form + 8 * slots, scale, mask=valid)
    tl.store(ws.form + 8 * slots + 1, reference, mask=valid)
    tl.store(ws.form + 8 * slots + 2, factor.to(tl.float32), mask=valid)
    if tl.max(greedy.to(tl.int32), axis=0) > 0:
        places = tl.load(ws.place + cells, mask=present, other=NO_INDEX, cache_modifier=".cg")
        argmax = tl.min(tl.where(references == most[:, None], places, NO_INDEX), axis=1)
        tl.store(ws.argmax + slots, argmax, mask=valid)
        p_x = tl.where(greedy, (x == argmax).to(tl.float64), p_x)
    return p_x


@triton.jit
def _block_outcome(ws, i, slots, valid, drafted, p_x, q_x, u):
    """Stores pi_1 ... pi_g; the whole draft is accepted if u_g < pi_g, else the residual masses decide.

    A row without a distribution ends the block: pi is NaN from there on, and g is the number of tokens before.
    """
    ratio = tl.where(p_x == 0, 0.0, p_x / q_x)
    pi = tl.where(valid, 1.0, 1.0).to(tl.float64)
    weight = tl.sum(tl.where(i == 0, pi, 0.0), axis=0)
    for k in range(0, drafted):
        weight *= tl.sum(tl.where(i == k, ratio, 0.0), axis=0)
        weight = tl.where(weight > 1, 1.0, weight)  # NaN stays
        pi = tl.where(i == k, weight, pi)
    tl.store(ws.pi + slots, pi, mask=valid)
    length = tl.sum((valid & (pi == pi)).to(tl.int32), axis=0)
    whole = (length == 0) | (tl.sum(tl.where((i == length - 1) & (u < pi), 1, 0), axis=0) > 0)
    return tl.where(whole, 1 + length, BY_MASS)
