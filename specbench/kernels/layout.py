"""The named tuples that kernels take: rows, masks, a block of drafts, and scratch memory."""

from typing import Any, NamedTuple

import triton
import triton.language as tl


class DeviceMask(NamedTuple):
    """core.mask.Mask on the device: restricted bool [m], bits int32 [m, words]; ``rows`` rows share a set."""

    restricted: Any
    bits: Any
    words: Any
    rows: Any


class Rows(NamedTuple):
    """LogitRows on the device: logits [n, V] at a row stride, the rest [n]; mask: a DeviceMask, or None.

    skips: None where each program has a single tile, so that there is none to leave out; see masks.py.
    """

    logits: Any
    stride: Any
    temperature: Any
    cutoff: Any
    log_normalizer: Any
    mask: Any = None
    skips: Any = None


class Block(NamedTuple):
    """The draft and its randomness: token_ids [n], the others [B]."""

    token_ids: Any
    num_draft_tokens: Any
    seeds: Any
    positions: Any


class Scratch(NamedTuple):
    """Memory through which programs exchange results; cells are [B, GAMMA, TILES], slots [B, GAMMA]."""

    reference: Any  # cells float32: the exponent that a tile's sum is relative to; of a greedy row its largest logit
    total: Any  # cells float32: sum of exp2(logit * scale - reference); block rule: later the tile's residual mass
    group: Any  # [B, slots, TILES, TILE / GROUP] float32: residual masses of groups of tokens
    place: Any  # cells int32: the index of the largest logit of a greedy row
    form: Any  # [slots, 8] float32: scale, reference, factor of p, then of q, of on_tiles.exp2_form; two unused
    argmax: Any  # slots int32, of greedy rows
    pi: Any  # slots float64: pi_(i+1) of the block rule
    scored: Any  # [B] int32, as the next two 0 between launches: chunks scored so far
    emitted: Any  # [B] int32: chunks emitted so far
    outcome: Any  # [B] int32: 0 not yet scored; 1 + tau, the row to draw from; or BY_MASS


@triton.jit
def extent(block, request, batch, gamma, n, PADDED: tl.constexpr):
    """(tokens drafted, first draft row) of a request, int64: within rows 0 to n - 1, whatever the counts are.

    PADDED: each request has gamma rows, of which its count are drafted. If not, then of n = batch * gamma drafted
    tokens every request drafted gamma, and no count is read. Wherever one is read, below 0 is 0 and above gamma is
    gamma; without padding a request that finds fewer tokens left has those. So all programs of a request agree on how
    many rows it has, and none waits for a row that is not scored.
    """
    if PADDED:
        first = request.to(tl.int64) * gamma
        drafted = tl.minimum(tl.maximum(tl.load(block.num_draft_tokens + request), 0), tl.minimum(gamma, n - first))
    elif n == batch * gamma:
        drafted = gamma.to(tl.int64)
        first = request.to(tl.int64) * drafted
    else:
        lanes = tl.arange(0, 256)
        first = tl.zeros((), tl.int64)
        for start in range(0, request, 256):
            before = start + lanes
            counts = tl.load(block.num_draft_tokens + before, mask=before < request, other=0)
            first += tl.sum(tl.minimum(tl.maximum(counts, 0), gamma), axis=0)
        first = tl.minimum(first, n)
        drafted = tl.minimum(tl.maximum(tl.load(block.num_draft_tokens + request), 0), tl.minimum(gamma, n - first))
    return drafted, first
