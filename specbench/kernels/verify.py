"""Verification of a ragged batch from raw logits to tokens in one launch, by the token rule or the block rule.

Twins: specbench/verifiers/masked.py and block.py. The same streams give the same tokens, unless a uniform lies within
rounding of a threshold.

One grid has two kinds of programs. A *scoring* program reads a chunk of a draft token's target row and stores the
statistics of its tiles. The last one of a request (an atomic counts them) computes the normalisers, makes the accept
tests and publishes the outcome. An *emitting* program waits for the outcome, reads a chunk of p and q of the row to
sample from (block rule: of every draft token's row) and stores the residual masses of groups of 64 tokens. The last one
of a request picks a group by inverse CDF and reads only that group again. The bonus row is read only if the whole draft
was accepted.

Emitting programs come ``lag`` requests after the scoring ones in the grid: they rarely wait, and find the target's row
still in the L2 cache. A program waits only for programs of a lower index, which the hardware starts first, so that it
never waits for a program that cannot start (CUB's decoupled look-back relies on the same order).
"""

import triton
import triton.language as tl

from specbench.kernels import tiles as on_tiles
from specbench.kernels.accept import BY_MASS, accept, draft_probs, draft_side, score
from specbench.kernels.emit import EMIT, draw, leave_masses, length_by_mass, write
from specbench.kernels.layout import extent


@triton.jit(do_not_specialize=["batch", "gamma", "n", "tiles", "score_chunk", "emit_chunk", "lag"])
def verify_kernel(
    p, q, block, ws, token_ids, num_accepted, batch, gamma, n, vocabulary, tiles, score_chunk, emit_chunk, lag,
    BLOCK: tl.constexpr, HAS_Q: tl.constexpr, KNOWN: tl.constexpr, TILE: tl.constexpr, TILES: tl.constexpr,
    GAMMA: tl.constexpr, SLOTS: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    """See the module. p, q, block, ws: Rows, Rows, Block, Scratch.

    token_ids [B, gamma + 1], num_accepted [B]: int64, written whole. gamma bounds num_draft_tokens; n: drafted
    tokens, at most B * gamma. vocabulary: V; tiles: of TILE logits in a row;
    score_chunk, emit_chunk: tiles a program. TILES, GAMMA: powers of two that bound tiles and gamma; SLOTS: 1, or for
    the block rule GAMMA; KNOWN: p.log_normalizer is given; HAS_Q: q is (else drafts are one-hot); PADDED: see extent.
    The grid is B * (gamma * scoring chunks in a row + slots * emitting chunks), with gamma slots for the block rule,
    one for the token rule.
    """
    slots = 1
    if BLOCK:
        slots = tl.maximum(gamma, 1)
    score_chunks, emit_chunks = tl.cdiv(tiles, score_chunk), tl.cdiv(tiles, emit_chunk)
    scores, request, item = task(tl.program_id(0), batch, lag, gamma * score_chunks, slots * emit_chunks)
    drafted, first = extent(block, request, batch, gamma, n, PADDED)
    if scores:
        given = draft_side(q, block, request, drafted, first, vocabulary, HAS_Q, GAMMA)
        before = score(
            p, block, ws, request, drafted, first, item, score_chunks, score_chunk, tiles, vocabulary,
            KNOWN, TILE, TILES, GAMMA,
        )  # fmt: skip
        of_draft = draft_probs(given, HAS_Q, GAMMA)  # while the count is on its way
        # Without draft tokens no outcome is published: no program waits for it, and the next launch would read it.
        if (drafted > 0) & (before == drafted * score_chunks - 1):
            outcome = accept(p, given[0], of_draft, ws, request, drafted, first, tiles, BLOCK, KNOWN, TILES, GAMMA)
            tl.debug_barrier()  # every thread's stores, before one thread publishes
            tl.atomic_xchg(ws.outcome + request, outcome, sem="release")
    else:
        u = on_tiles.uniform(
            tl.load(block.seeds + request), tl.load(block.positions + request), tl.zeros((), tl.int32), EMIT
        )
        slot, begin = item // emit_chunks, (item % emit_chunks) * emit_chunk
        used = tl.full((), 1, tl.int64)
        if BLOCK:
            used = tl.maximum(drafted, 1)
        if slot < used:
            outcome = tl.full((), 1, tl.int32)
            if drafted > 0:
                outcome = tl.atomic_add(ws.outcome + request, 0, sem="acquire")
                while outcome == 0:
                    outcome = tl.atomic_add(ws.outcome + request, 0, sem="acquire")
            tau = tl.where(outcome == BY_MASS, slot, outcome - 1)
            if (outcome == BY_MASS) | (slot == 0):
                end = tl.minimum(begin + emit_chunk, tiles)
                leave_masses(
                    p, q, block, ws, request, drafted, first, slot, tau, begin, end, vocabulary,
                    BLOCK, HAS_Q, TILE, TILES, GAMMA, SLOTS,
                )  # fmt: skip
            tl.debug_barrier()  # every thread's masses, before one thread counts this program
            if tl.atomic_add(ws.emitted + request, 1, sem="acq_rel") == used * emit_chunks - 1:
                slot = 0
                if outcome == BY_MASS:
                    tau = length_by_mass(block, ws, request, drafted, tiles, TILES, GAMMA)
                    slot = tau
                token, _, _ = draw(
                    p, q, block, ws, u, request, drafted, first, slot, tau, tiles, vocabulary,
                    BLOCK, HAS_Q, TILE, TILES, GAMMA, SLOTS,
                )  # fmt: skip
                write(block, request, first, tau, token, token_ids, num_accepted, gamma, GAMMA)
                tl.store(ws.scored + request, 0)
                tl.store(ws.emitted + request, 0)
                tl.store(ws.outcome + request, 0)


@triton.jit
def task(place, batch, lag, scoring, emitting):
    """(whether it scores, request, number) of a program; scoring, emitting: programs a request.

    Requests 0 .. lag - 1 are scored; then each is emitted as the one lag places behind it is scored; then the rest.
    """
    ahead = place - lag * scoring
    paired = (batch - lag) * (scoring + emitting)
    scores = ahead < 0
    request, item = place // tl.maximum(scoring, 1), place % tl.maximum(scoring, 1)
    if (ahead >= 0) & (ahead < paired):
        request, item = ahead // (scoring + emitting), ahead % (scoring + emitting)
        scores = item >= emitting
        request = tl.where(scores, request + lag, request)
        item = tl.where(scores, item - emitting, item)
    elif ahead >= 0:
        request, item = batch - lag + (ahead - paired) // emitting, (ahead - paired) % emitting
    return scores, request, item
