"""The tokens that a row allows: the bits of core.mask.Mask, read beside the logits.

A row's mask is a tuple: a pointer to its words, their number, and the bits that count as set in all words and beyond
them, which are all bits if the row bans nothing. Rows without a mask have an empty tuple, and their kernels are
compiled without masks. If programs have several tiles the tuple has a fourth part: a program then skips tiles without
allowed tokens, and checks first whether the row needs its words at all. A program with a single tile reads the words in
any case, so as not to wait. The absent part is not None, which functions of Triton 3.6 cannot return.
"""

import triton
import triton.language as tl

BITS = tl.constexpr(32)  # of a word
MOST_TILES = tl.constexpr(32)  # tiles whose words a program reads at once


@triton.jit
def set_of(mask, rows):
    """The sets of the given rows, int64. A 64-bit division would be a call of a hundred instructions."""
    return (rows.to(tl.int32) // mask.rows).to(tl.int64)


@triton.jit
def mask_of(source, row):
    """The mask of a row of Rows."""
    if source.mask is None:
        return ()
    elif source.skips is None:
        return words_of(source.mask, row)
    else:
        words, count, beyond = words_of(source.mask, row)
        return words, tl.where(beyond == 0, count, 0), beyond, 0


@triton.jit
def words_of(mask, row):
    """(words, their number, bits set in all words and beyond) of a row."""
    own = set_of(mask, row)
    return mask.bits + own * mask.words, mask.words, tl.where(tl.load(mask.restricted + own), 0, -1)


@triton.jit
def words_at(mask, at, held):
    """Words of a row's mask at the given places; 0 or all bits where ``held`` is False."""
    words, count, beyond = mask[0], mask[1], mask[2]
    return tl.load(words + at, mask=held & (at < count), other=0) | beyond


@triton.jit
def allowed(mask, start, N: tl.constexpr, TOGETHER: tl.constexpr):
    """Whether each of N tokens from ``start`` on is allowed; both are multiples of BITS.

    A thread loads the word of TOGETHER tokens once, the number of logits that it loads in one piece.
    """
    place = tl.arange(0, N // TOGETHER) * TOGETHER
    word = words_at(mask, (start + place) // BITS, place >= 0) >> (place % BITS)
    return tl.reshape(((word[:, None] >> tl.arange(0, TOGETHER)[None, :]) & 1) != 0, (N,))


@triton.jit
def allows(mask, rows, x):
    """Whether each row allows its token x; False for x below 0. Both [m] or scalars."""
    own = set_of(mask, rows)
    word = tl.load(mask.bits + own * mask.words + x // BITS, mask=(x >= 0) & (x // BITS < mask.words), other=0)
    free = tl.load(mask.restricted + own, mask=x >= 0, other=1) == 0  # rows without a token may lie beyond the last
    return (x >= 0) & (free | (((word >> (x % BITS)) & 1) != 0))


@triton.jit
def tiles_with_tokens(mask, begin, end, TILE: tl.constexpr):
    """Bit i says whether tile begin + i has an allowed token; for at most MOST_TILES tiles.

    The bit of a single tile is always set: to look would make its logits wait for the mask.
    """
    some = tl.full((), 1, tl.int64)
    if end - begin > 1:
        i = tl.arange(0, MOST_TILES)
        at = (begin + i)[:, None] * (TILE // BITS) + tl.arange(0, TILE // BITS)[None, :]
        held = words_at(mask, at, (i < end - begin)[:, None])
        any_set = tl.max((held != 0).to(tl.int32), axis=1)
        some = tl.sum(tl.where(i < end - begin, any_set.to(tl.int64) << i, 0), axis=0)
    return some


@triton.jit
def is_every(some, begin, end):
    """Whether all tiles of tiles_with_tokens() have allowed tokens."""
    return some == (tl.full((), 1, tl.int64) << (end - begin)) - 1


@triton.jit
def has_tokens(some, i):
    """Whether tile i of tiles_with_tokens() has an allowed token."""
    return ((some >> i) & 1) != 0
