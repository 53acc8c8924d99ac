"""Penalties, biases and bans in place, on the tokens concerned alone. Twin: sampling/shaped.py, which has the formulas.

shape_kernel does all of it but allowed_token_ids in one launch. The tokens of a request are dealt out by id to a few
programs, none of which waits for another. Each changes those that its list has (tally.py) and those drafted that it
has not, in all rows of the request, with the drafted tokens that precede a row counted beside. What a program reads
comes in two trips to memory: all that does not depend on a logit first, then the logits. allow_kernel writes -inf to
all that allowed_token_ids leaves out, and reads nothing of the row.
"""

import triton
import triton.language as tl

from specbench.kernels.tally import GIVEN, belongs


@triton.jit
def penalised(logit, count, presence, frequency, repetition):
    """The logits, float64, of tokens with these counts."""
    own = (count & (GIVEN - 1)).to(tl.float64)
    scaled = tl.where(logit > 0, logit / repetition, logit * repetition)
    return tl.where(count > 0, scaled, logit) - frequency * own - tl.where(own > 0, presence, 0.0)


@triton.jit
def times(drafted, width, offset, token):
    """How often tokens [1, m] are among the first ``offset`` [rows, 1] of ``width`` drafted ones."""
    found = tl.zeros_like(offset + token).to(tl.int32)
    for i in tl.range(0, width, loop_unroll_factor=4):
        found += ((tl.load(drafted + i) == token) & (i < offset)).to(tl.int32)
    return found


@triton.jit
def store(at, value, mask):
    """Writes float64 values in the logits' dtype, rounded through float32 as the twin does."""
    tl.store(at, value.to(tl.float32).to(at.dtype.element_ty), mask=mask)


@triton.jit
def changed(
    logit, token, count, offset, drafted, width, once, each, factor, bias_ids, bias, biases, BIAS: tl.constexpr
):
    """Logits float64 [rows, m] of tokens [m] with these counts in the text, behind ``offset`` drafted tokens."""
    counted = count[None, :] + times(drafted, width, offset, token[None, :])
    if BIAS:
        for i in range(0, biases):
            logit += tl.where(tl.load(bias_ids + i) == token[None, :], tl.load(bias + i), 0.0)
    return penalised(logit, counted, once, each, factor)


@triton.jit
def penalise(
    logits, stride, offset_of, rows, drafted, width, number, listed, counts, room, vocabulary, part, parts,
    once, each, factor, bias_ids, bias, biases,
    BIAS: tl.constexpr, ROWS: tl.constexpr, TOKENS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Changes the tokens of a list, and the drafted ones of this program that it lacks, in every row of the request."""
    lanes, place = tl.arange(0, TOKENS), tl.arange(0, WIDTH)
    own = tl.load(drafted + place, mask=place < width, other=-1).to(tl.int32)
    again = tl.max(((own[:, None] == own[None, :]) & (place[:, None] > place[None, :])).to(tl.int32), axis=1)
    mine = belongs(own, (place < width) & (again == 0), vocabulary, part, parts)
    for first in range(0, rows, ROWS):
        row = (first + tl.arange(0, ROWS))[:, None]
        inside, at = row < rows, logits + row.to(tl.int64) * stride
        # Neither waits until it is known how long the list is.
        token = tl.load(listed + lanes, mask=lanes < room, other=0)
        count = tl.load(counts + lanes, mask=lanes < room, other=0)
        offset = tl.load(offset_of + row, mask=inside, other=0)
        fresh = tl.load(at + own[None, :], mask=inside & mine[None, :], other=0.0).to(tl.float64)
        known = tl.zeros((WIDTH,), tl.int32)
        for start in range(0, number, TOKENS):
            held = start + lanes < number
            asked = inside & held[None, :]
            logit = tl.load(at + token[None, :], mask=asked, other=0.0).to(tl.float64)
            met = (own[:, None] == token[None, :]) & held[None, :]
            known = tl.maximum(known, tl.max(met.to(tl.int32), axis=1))
            logit = changed(
                logit, token, count, offset, drafted, width, once, each, factor, bias_ids, bias, biases, BIAS
            )  # fmt: skip
            store(at + token[None, :], logit, asked)
            more = start + TOKENS + lanes
            token = tl.load(listed + more, mask=more < number, other=0)
            count = tl.load(counts + more, mask=more < number, other=0)
        fresh = changed(
            fresh, own, known * 0, offset, drafted, width, once, each, factor, bias_ids, bias, biases, False
        )  # fmt: skip
        store(at + own[None, :], fresh, inside & (mine & (known == 0))[None, :])


@triton.jit
def early(min_tokens, ending_ids, endings, place, prompt, start, vocabulary, part, parts, TOKENS: tl.constexpr):
    """Some of the tokens that end a text [TOKENS], and in which rows they may not come yet [rows, TOKENS]."""
    named = start + tl.arange(0, TOKENS) < endings
    ending = tl.load(ending_ids + start + tl.arange(0, TOKENS), mask=named, other=-1)
    refused = (place - prompt < tl.load(min_tokens)) & belongs(ending, named, vocabulary, part, parts)[None, :]
    return ending, refused


@triton.jit
def completed(
    bad_words, sequences, longest, texts, drafted, place, prompt, length, start, vocabulary, part, parts,
    TOKENS: tl.constexpr,
):  # fmt: skip
    """The last tokens of some bad words [TOKENS], and in which rows all the others precede them [rows, TOKENS]."""
    named = start + tl.arange(0, TOKENS) < sequences
    words = bad_words + (start + tl.arange(0, TOKENS)) * longest
    last = tl.load(words, mask=named, other=-1)
    banned = (place >= 0) & belongs(last, named, vocabulary, part, parts)[None, :]
    for back in tl.range(1, longest, loop_unroll_factor=4):
        wanted = tl.load(words + back, mask=named, other=-1)[None, :]
        before = place - back
        inside, behind = before >= prompt, before >= length
        written = tl.load(texts + before, mask=inside & (before < length), other=-2)
        own = tl.load(drafted + before - length, mask=inside & behind, other=-2)
        banned = banned & ((wanted == -1) | (wanted == tl.where(behind, own, written)))
    return last, banned


@triton.jit(do_not_specialize=["step", "rows", "room", "width", "biases", "sequences", "longest", "endings", "parts"])
def shape_kernel(
    logits, stride, offset_of, texts, text_stride, prompt_lengths, text_lengths, drafted, drafted_stride,
    found, listed, counts, presence, frequency, repetition, bias_ids, bias, bad_words, min_tokens, ending_ids,
    step, rows, room, width, biases, sequences, longest, endings, vocabulary, parts,
    PENALISE: tl.constexpr, BIAS: tl.constexpr, FORBID: tl.constexpr, DELAY: tl.constexpr,
    ROWS: tl.constexpr, TOKENS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """logits [B * rows, vocabulary], changed; the others as in Shaping and History, whose ``request`` is row // rows.

    found int32 [B, parts]; listed and counts int32 [B, parts, room]: what tally_kernel left. Row ``request * step`` of
    Shaping is that of a request. TOKENS are changed together in ROWS rows; WIDTH: a power of two, at least width.
    Grid: B * parts.
    """
    program = tl.program_id(0).to(tl.int64)
    request, part = program // parts, (program % parts).to(tl.int32)
    setting, lanes = request * step, tl.arange(0, TOKENS)
    logits += request * rows * stride
    offset_of += request * rows
    texts += request * text_stride
    drafted += request * drafted_stride
    bias_ids += setting * biases
    bias += setting * biases
    ending_ids += setting * endings
    bad_words += setting * sequences * longest
    prompt, length = tl.load(prompt_lengths + request), tl.load(text_lengths + request)
    row = tl.arange(0, ROWS)[:, None]
    place = length + tl.load(offset_of + row, mask=row < rows, other=0)
    if DELAY:  # looked up before anything is written, so that nothing waits for it afterwards
        ending, refused = early(
            min_tokens + setting, ending_ids, endings, place, prompt, 0, vocabulary, part, parts, TOKENS
        )  # fmt: skip
    if FORBID:
        last, banned = completed(
            bad_words, sequences, longest, texts, drafted, place, prompt, length, 0, vocabulary, part, parts, TOKENS
        )  # fmt: skip
    if PENALISE:
        once, each, factor = tl.load(presence + setting), tl.load(frequency + setting), tl.load(repetition + setting)
        penalise(
            logits, stride, offset_of, rows, drafted, width, tl.load(found + program), listed + program * room,
            counts + program * room, room, vocabulary, part, parts, once, each, factor, bias_ids, bias, biases,
            BIAS, ROWS, TOKENS, WIDTH,
        )  # fmt: skip
    elif BIAS:
        for start in range(0, biases, TOKENS):
            id = tl.load(bias_ids + start + lanes, mask=start + lanes < biases, other=-1)
            more = tl.load(bias + start + lanes, mask=start + lanes < biases, other=0.0)
            held = belongs(id, start + lanes < biases, vocabulary, part, parts)
            for first in range(0, rows, ROWS):
                several = (first + tl.arange(0, ROWS))[:, None]
                at, asked = logits + several.to(tl.int64) * stride + id[None, :], (several < rows) & held[None, :]
                store(at, tl.load(at, mask=asked, other=0.0).to(tl.float64) + more[None, :], asked)
    if PENALISE or BIAS:
        tl.debug_barrier()  # what follows may ban a token that another thread wrote
    nothing = tl.full((ROWS, TOKENS), float("-inf"), tl.float64)
    for first in range(0, rows, ROWS):
        row = (first + tl.arange(0, ROWS))[:, None]
        place = length + tl.load(offset_of + row, mask=row < rows, other=0)
        at = logits + row.to(tl.int64) * stride
        if DELAY:
            for start in range(0, endings, TOKENS):
                if first + start > 0:
                    ending, refused = early(
                        min_tokens + setting, ending_ids, endings, place, prompt, start, vocabulary, part, parts, TOKENS
                    )  # fmt: skip
                store(at + ending[None, :], nothing, refused & (row < rows))
        if FORBID:
            for start in range(0, sequences, TOKENS):
                if first + start > 0:
                    last, banned = completed(
                        bad_words, sequences, longest, texts, drafted, place, prompt, length, start,
                        vocabulary, part, parts, TOKENS,
                    )  # fmt: skip
                store(at + last[None, :], nothing, banned & (row < rows))


@triton.jit(do_not_specialize=["rows", "words", "tiles"])
def allow_kernel(
    logits, stride, restricted, allowed, rows, words, vocabulary, tiles, TILE: tl.constexpr, WORDS: tl.constexpr
):  # fmt: skip
    """logits [n, vocabulary], changed; restricted bool [m], allowed int32 [m, words]. Grid: n * tiles.

    A row of restricted and allowed is for ``rows`` rows of logits. WORDS of allowed hold the bits of a tile.
    """
    row, tile = (tl.program_id(0) // tiles).to(tl.int64), tl.program_id(0) % tiles
    setting = row // rows
    if tl.load(restricted + setting):
        token, own = tile * TILE + tl.arange(0, TILE), tile * (TILE // 32) + tl.arange(0, WORDS)
        some = tl.max(tl.load(allowed + setting * words + own, mask=own < words, other=0) != 0, 0)
        banned = token < vocabulary
        if some:  # else all of the tile is banned, and written in wide pieces
            word = tl.load(allowed + setting * words + token // 32, mask=token // 32 < words, other=0)
            banned = banned & (((word >> (token % 32)) & 1) == 0)
            store(logits + row * stride + token, tl.full((TILE,), float("-inf"), tl.float64), banned)
        else:
            store(logits + row * stride + token, tl.full((TILE,), float("-inf"), tl.float64), banned)
