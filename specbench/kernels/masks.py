"""Which tokens of a row may come: the bits of masked_rows.Mask, read beside the logits.

A row's mask is a tuple (words, how many of them there are, what stands for a word beyond them), empty where rows have
no mask: then no code is made for it. A row that nothing is banned from has no words, and all bits beyond them are set.
None would do in Triton 3.7, but functions of 3.6 cannot return it.
"""

import triton
import triton.language as tl

BITS = tl.constexpr(32)  # of a word
MOST_TILES = tl.constexpr(32)  # that a program looks through at once


@triton.jit
def mask_of(mask, row):
    """The mask of a row."""
    if mask is None:
        return ()
    else:
        own = row // mask.rows
        beyond = tl.where(tl.load(mask.restricted + own), 0, -1)
        return mask.bits + own * mask.words, tl.where(beyond == 0, mask.words, 0), beyond


@triton.jit
def allowed(mask, start, N: tl.constexpr):
    """Whether each of N tokens from ``start`` on may come; both are multiples of BITS."""
    words, count, beyond = mask
    at = start // BITS + tl.arange(0, N // BITS)
    word = tl.load(words + at, mask=at < count, other=beyond)
    return tl.reshape(((word[:, None] >> tl.arange(0, BITS)[None, :]) & 1) != 0, (N,))


@triton.jit
def allows(mask, rows, x):
    """Whether each row's own token may come; False for one below 0. Both [m] or scalars."""
    own = rows // mask.rows
    word = tl.load(mask.bits + own * mask.words + x // BITS, mask=(x >= 0) & (x // BITS < mask.words), other=0)
    free = tl.load(mask.restricted + own, mask=x >= 0, other=1) == 0  # rows without a token may lie beyond the last
    return (x >= 0) & (free | (((word >> (x % BITS)) & 1) != 0))


@triton.jit
def tiles_with_tokens(mask, begin, end, TILE: tl.constexpr):
    """Bit i says whether tile begin + i has any token that may come; of at most MOST_TILES tiles.

    A single tile counts as one that has: to look would make its logits wait for the mask.
    """
    some = tl.full((), 1, tl.int64)
    if end - begin > 1:
        words, count, beyond = mask
        i = tl.arange(0, MOST_TILES)
        at = (begin + i)[:, None] * (TILE // BITS) + tl.arange(0, TILE // BITS)[None, :]
        held = tl.load(words + at, mask=(at < count) & (i < end - begin)[:, None], other=beyond)
        found = tl.max((held != 0).to(tl.int32), axis=1)
        some = tl.sum(tl.where(i < end - begin, found.to(tl.int64) << i, 0), axis=0)
    return some


@triton.jit
def is_every(some, begin, end):
    """Whether all tiles of tiles_with_tokens() have tokens that may come."""
    return some == (tl.full((), 1, tl.int64) << (end - begin)) - 1


@triton.jit
def has_tokens(some, i):
    """Whether tile i of tiles_with_tokens() has."""
    return ((some >> i) & 1) != 0
