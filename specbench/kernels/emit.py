"""The emitting half of verification: residual masses, and the recovered or bonus token by a three-level inverse CDF.

A row to draw from is described by scalars (its *form*), so that tiles are weighed in a loop without further loads:
weight(x) = max(pi p(x) - q(x), 0), with q one-hot at the drafted token where the draft has no distribution, and absent
for the bonus row and where the residual has no mass.
"""

import triton
import triton.language as tl

from specbench.kernels import masks
from specbench.kernels import tiles as on_tiles
from specbench.kernels.accept import ACCEPT, drafted_ids
from specbench.kernels.tiles import NO_INDEX, STAGES

EMIT = tl.constexpr(2)  # rng.Stream.EMIT
PADDING = tl.constexpr(-1)  # types.PADDING
GROUP = tl.constexpr(64)  # tokens among which the last level chooses


@triton.jit
def row_form(p, q, block, ws, request, first, tau, subtract, vocabulary, BLOCK, HAS_Q, GAMMA):
    """The form of the drafted row ``tau`` of a request; p's alone without ``subtract``.

    (p's, q's, drafted token, whether q is dense, whether p is greedy, p's argmax, pi); p's and q's are (row, mask,
    cutoff, scale, reference, factor). All loads come first, so that they cost one trip to memory.
    """
    row, slot, draft = first + request + tau, request * GAMMA + tau, first + tau
    scale = tl.load(ws.form + 8 * slot, cache_modifier=".cg")
    reference = tl.load(ws.form + 8 * slot + 1, cache_modifier=".cg")
    factor = tl.load(ws.form + 8 * slot + 2, cache_modifier=".cg")
    q_scale = tl.load(ws.form + 8 * slot + 3, cache_modifier=".cg")
    q_reference = tl.load(ws.form + 8 * slot + 4, cache_modifier=".cg")
    q_factor = tl.load(ws.form + 8 * slot + 5, cache_modifier=".cg")
    x = drafted_ids(block, draft, subtract, vocabulary)
    cutoff, q_cutoff = tl.load(p.cutoff + row).to(tl.float32), tl.full((), 0.0, tl.float32)
    dense = subtract & (q_factor != 0)
    if HAS_Q:
        q_cutoff = tl.load(q.cutoff + draft).to(tl.float32)
    pi, argmax, greedy = tl.full((), 1.0, tl.float32), tl.full((), NO_INDEX, tl.int32), draft < 0
    if BLOCK:  # the token rule never weighs a greedy row
        greedy = tl.load(p.temperature + row) == 0
        pi = tl.load(ws.pi + slot - 1, mask=subtract & (tau > 0), other=1.0, cache_modifier=".cg").to(tl.float32)
        argmax = tl.load(ws.argmax + slot, mask=greedy, other=NO_INDEX, cache_modifier=".cg")
    p_form = (p.logits + row * p.stride, masks.mask_of(p, row), cutoff, scale, reference, factor * pi)
    q_form = (q.logits + draft * q.stride, (), q_cutoff, q_scale, q_reference, q_factor)
    return p_form, q_form, x, dense, greedy, argmax, pi


@triton.jit
def _probs(form, start, vocabulary, WHOLE, N: tl.constexpr):
    """Probabilities, times pi, of N tokens of a row from ``start`` on, float32."""
    row, mask, cutoff, scale, reference, factor = form
    logits = on_tiles.load(row, mask, start, vocabulary, WHOLE, N)
    probs = on_tiles.exp2(tl.fma(logits, scale, -reference)) * factor
    return tl.where(logits < cutoff, 0.0, probs)


@triton.jit
def weigh(form, start, vocabulary, BLOCK, HAS_Q, WHOLE, N: tl.constexpr):
    """The weights of N tokens of a row from ``start`` on, float32.

    The draft's logits have no mask: what the target's bans has no weight, by p.
    """
    p_form, q_form, x, dense, greedy, argmax, pi = form
    offsets = start + tl.arange(0, N)
    weights = _probs(p_form, start, vocabulary, WHOLE, N)
    if BLOCK:
        weights = tl.where(greedy, tl.where(offsets == argmax, pi, 0.0), weights)
    taken = tl.where(offsets == x, 1.0, 0.0)
    if HAS_Q:
        if dense:
            taken = _probs(q_form, start, vocabulary, WHOLE, N)
    return tl.maximum(weights - taken, 0.0)


@triton.jit
def leave_masses(
    p, q, block, ws, request, drafted, first, slot, tau, begin, end, vocabulary,
    BLOCK, HAS_Q, TILE, TILES, GAMMA, SLOTS,
):  # fmt: skip
    """Leaves the residual masses of tiles [begin, end) of row ``tau``; of the bonus row, its sums or largest logits."""
    cells, groups = (request * GAMMA + slot) * TILES, (request * SLOTS + slot) * TILES
    row = first + request + tau
    temperature = tl.load(p.temperature + row).to(tl.float64)
    if tau == drafted:
        logits, mask = p.logits + row * p.stride, masks.mask_of(p, row)
        if temperature > 0:
            _leave_bonus_masses(
                logits, mask, begin, end, on_tiles.exp2_scale(temperature), tl.load(p.cutoff + row).to(tl.float32),
                vocabulary, ws.reference + cells, ws, groups, TILE,
            )  # fmt: skip
        else:
            on_tiles.leave_largest(logits, mask, begin, end, vocabulary, ws.reference + cells, ws.place + cells, TILE)
    elif BLOCK | (temperature > 0):  # the token rule's recovered token at temperature 0 is the argmax, known already
        form = row_form(p, q, block, ws, request, first, tau, tau < drafted, vocabulary, BLOCK, HAS_Q, GAMMA)
        every = True
        mask = form[0][1]
        if len(mask) > 3:
            some = masks.tiles_with_tokens(mask, begin, end, TILE)
            every = masks.is_every(some, begin, end)
            if not every:
                for t in range(begin, end):
                    if masks.has_tokens(some, t - begin):
                        _leave_mass(form, t, ws, cells, groups, vocabulary, BLOCK, HAS_Q, False, TILE)
                    else:
                        _leave_no_mass(t, ws, cells, groups, BLOCK, TILE)
        if every:
            whole = tl.minimum(end, vocabulary // TILE)
            for t in tl.range(begin, whole, num_stages=STAGES):
                _leave_mass(form, t, ws, cells, groups, vocabulary, BLOCK, HAS_Q, True, TILE)
            for t in range(tl.maximum(begin, whole), end):
                _leave_mass(form, t, ws, cells, groups, vocabulary, BLOCK, HAS_Q, False, TILE)


@triton.jit
def _leave_mass(form, t, ws, cells, groups, vocabulary, BLOCK, HAS_Q, WHOLE, TILE):
    """Leaves the group masses of tile t of a row; for the block rule the tile's mass too, which every row needs."""
    weights = weigh(form, t * TILE, vocabulary, BLOCK, HAS_Q, WHOLE, TILE)
    on_tiles.leave_group_masses(weights, ws.group + (groups + t) * (TILE // GROUP), TILE, GROUP)
    if BLOCK:
        tl.store(ws.total + cells + t, tl.sum(weights, axis=0))


@triton.jit
def _leave_no_mass(t, ws, cells, groups, BLOCK, TILE):
    """What _leave_mass() leaves of a tile whose tokens the mask bans, all of them."""
    on_tiles.leave_no_group_masses(ws.group + (groups + t) * (TILE // GROUP), TILE, GROUP)
    if BLOCK:
        tl.store(ws.total + cells + t, 0.0)


@triton.jit
def _leave_bonus_masses(row, mask, begin, end, scale, cutoff, vocabulary, references, ws, groups, TILE):
    """Leaves, of tiles [begin, end) of a row, the largest kept logit * scale and the group masses relative to it."""
    every = True
    if len(mask) > 3:
        some = masks.tiles_with_tokens(mask, begin, end, TILE)
        every = masks.is_every(some, begin, end)
        if not every:
            for t in range(begin, end):
                if masks.has_tokens(some, t - begin):
                    _leave_bonus_mass(row, mask, t, scale, cutoff, vocabulary, references, ws, groups, TILE)
                else:
                    tl.store(references + t, float("-inf"))
                    on_tiles.leave_no_group_masses(ws.group + (groups + t) * (TILE // GROUP), TILE, GROUP)
    if every:
        for t in tl.range(begin, end, num_stages=STAGES):
            _leave_bonus_mass(row, mask, t, scale, cutoff, vocabulary, references, ws, groups, TILE)


@triton.jit
def _leave_bonus_mass(row, mask, t, scale, cutoff, vocabulary, references, ws, groups, TILE):
    logits = on_tiles.load(row, mask, t * TILE, vocabulary, False, TILE)
    logits = tl.where(logits < cutoff, float("-inf"), logits)
    reference = tl.max(logits, axis=0) * scale
    weights = on_tiles.exp2(tl.fma(logits, scale, -reference))
    weights = tl.where(logits == float("-inf"), 0.0, weights)  # all may be -inf, or all but a NaN
    tl.store(references + t, reference)
    on_tiles.leave_group_masses(weights, ws.group + (groups + t) * (TILE // GROUP), TILE, GROUP)


@triton.jit
def length_by_mass(block, ws, request, drafted, tiles, TILES, GAMMA):
    """tau of the block rule where the whole draft was refused: the largest i < drafted with u_i < h_i, or 0."""
    i, t = tl.arange(0, GAMMA), tl.arange(0, TILES)
    valid = (i > 0) & (i < drafted)
    cells = (request * GAMMA + i)[:, None] * TILES + t[None, :]
    masses = tl.load(ws.total + cells, mask=valid[:, None] & (t < tiles)[None, :], other=0.0, cache_modifier=".cg")
    mass = tl.sum(masses.to(tl.float64), axis=1)
    pi = tl.load(ws.pi + request * GAMMA + i - 1, mask=valid, other=1.0, cache_modifier=".cg")
    whole = mass + 1 - pi
    h = tl.where(whole == 0, 1.0, mass / tl.where(whole == 0, 1.0, whole))
    # The test of length i belongs to the i-th drafted token, whose uniform has offset i - 1.
    offset = tl.maximum(i - 1, 0)
    u = on_tiles.uniform(tl.load(block.seeds + request), tl.load(block.positions + request), offset, ACCEPT)
    return tl.max(tl.where(valid & (u < h), i, 0), axis=0)


@triton.jit
def draw(
    p, q, block, ws, u, request, drafted, first, slot, tau, tiles, vocabulary, BLOCK, HAS_Q, TILE, TILES, GAMMA, SLOTS
):
    """The recovered or bonus token by the uniform u, int32; NO_INDEX or -1 where its row holds NaN, +inf or only -inf.

    Also the row's mass in units of 2^reference, float64, and that reference, for who wants a normaliser.
    """
    t = tl.arange(0, TILES)
    cells, present = (request * GAMMA + slot) * TILES + t, t < tiles
    temperature = tl.load(p.temperature + first + request + tau).to(tl.float64)
    bonus = tau == drafted
    token, total = tl.full((), -1, tl.int32), tl.full((), 1.0, tl.float64)
    references = tl.full((TILES,), float("-inf"), tl.float32)
    if bonus:
        references = tl.load(ws.reference + cells, mask=present, other=float("-inf"), cache_modifier=".cg")
    most = tl.max(references, axis=0)
    if (temperature == 0) & bonus:
        place = tl.load(ws.place + cells, mask=present, other=NO_INDEX, cache_modifier=".cg")
        token = tl.min(tl.where(references == most, place, NO_INDEX), axis=0)
    elif (temperature == 0) & (BLOCK == 0):
        token = tl.load(ws.argmax + request * GAMMA + tau, cache_modifier=".cg")
    else:
        g = tl.arange(0, TILE // GROUP)
        groups = ws.group + (request * SLOTS + slot) * TILES * (TILE // GROUP)
        every = tl.load(
            groups + t[:, None] * (TILE // GROUP) + g[None, :], mask=present[:, None], other=0.0, cache_modifier=".cg"
        )
        masses = tl.sum(every, axis=1).to(tl.float64)
        shifts = on_tiles.exp2(references - most)
        if bonus:
            masses = tl.where(masses == 0, 0.0, masses * shifts)
        total = tl.sum(masses, axis=0)
        subtract = total != 0
        if (tau < drafted) & (total == 0):  # p equals q but for rounding: drawn from p
            form = row_form(p, q, block, ws, request, first, tau, subtract, vocabulary, BLOCK, HAS_Q, GAMMA)
            for k in range(0, tiles):
                weights = weigh(form, k * TILE, vocabulary, BLOCK, HAS_Q, False, TILE)
                on_tiles.leave_group_masses(weights, groups + k * (TILE // GROUP), TILE, GROUP)
                masses = tl.where(t == k, tl.sum(weights, axis=0).to(tl.float64), masses)
            total = tl.sum(masses, axis=0)
            tl.debug_barrier()  # the group masses are read by other threads than the writers
        tile, rest = on_tiles.pick(masses, u * total, TILES)
        shift = tl.sum(tl.where((t == tile) & bonus, shifts, 0.0), axis=0)
        few = tl.load(groups + tile * (TILE // GROUP) + g, cache_modifier=".cg").to(tl.float64)
        group, rest = on_tiles.pick(tl.where(bonus, few * shift, few), rest, TILE // GROUP)
        start = tile * TILE + group * GROUP
        if bonus:  # relative to the row's largest logit: the draw normalises itself
            row = first + request + tau
            mask = masks.mask_of(p, row)
            logits = on_tiles.load(p.logits + row * p.stride, mask, start, vocabulary, False, GROUP)
            kept = logits >= tl.load(p.cutoff + row).to(tl.float32)
            weights = tl.where(kept, on_tiles.exp2(tl.fma(logits, on_tiles.exp2_scale(temperature), -most)), 0.0)
        else:
            form = row_form(p, q, block, ws, request, first, tau, subtract, vocabulary, BLOCK, HAS_Q, GAMMA)
            weights = weigh(form, start, vocabulary, BLOCK, HAS_Q, False, GROUP)
        place, _ = on_tiles.pick(weights.to(tl.float64), rest, GROUP)
        token = tl.where((total > 0) & (total < float("inf")), start + place, -1)
    return token, total, most


@triton.jit
def write(block, request, first, tau, token, token_ids, num_accepted, gamma, GAMMA):
    """The accepted tokens, the emitted one (PADDING for none), padding."""
    token = tl.where(token == NO_INDEX, PADDING, token).to(tl.int64)
    i = tl.arange(0, 2 * GAMMA)
    drafted = tl.load(block.token_ids + first + i, mask=i < tau, other=0)
    row = tl.where(i < tau, drafted, tl.where(i == tau, token, PADDING))
    tl.store(token_ids + request * (gamma + 1) + i, row, mask=i <= gamma)
    tl.store(num_accepted + request, tau.to(tl.int64))
