"""Penalties, biases and bans in place, on the tokens concerned alone. Twin: sampling/shaped.py, which has the formulas.

shape_some does all of it but allowed_token_ids, in a launch of its own (shape_kernel) or in that of a verifier
(verify.py). The tokens of a request are dealt out by id to a few programs, and its rows too, none of which waits for
another. Each changes those that its list has (tally.py) and those drafted that it has not, with the drafted tokens
that precede a row counted beside. What a program reads comes in two trips to memory: all that does not depend on a
logit first, then the logits. allow_kernel writes -inf to all that allowed_token_ids leaves out, and reads nothing of
the row.
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
    at, inside, offset, drafted, width, number, listed, counts, room, vocabulary, part, parts,
    once, each, factor, bias_ids, bias, biases,
    BIAS: tl.constexpr, TOKENS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Changes the tokens of a list, and the drafted ones of this part that it lacks, in the rows that start ``at``."""
    lanes, place = tl.arange(0, TOKENS), tl.arange(0, WIDTH)
    # Neither waits until it is known how long the list is.
    token = tl.load(listed + lanes, mask=lanes < room, other=0)
    count = tl.load(counts + lanes, mask=lanes < room, other=0)
    own = tl.load(drafted + place, mask=place < width, other=-1).to(tl.int32)
    again = tl.max(((own[:, None] == own[None, :]) & (place[:, None] > place[None, :])).to(tl.int32), axis=1)
    mine = belongs(own, (place < width) & (again == 0), vocabulary, part, parts)
    fresh = tl.load(at + own[None, :], mask=inside & mine[None, :], other=0.0).to(tl.float64)
    known = tl.zeros((WIDTH,), tl.int32)
    for start in range(0, number, TOKENS):
        held = start + lanes < number
        asked = inside & held[None, :]
        logit = tl.load(at + token[None, :], mask=asked, other=0.0).to(tl.float64)
        met = (own[:, None] == token[None, :]) & held[None, :]
        known = tl.maximum(known, tl.max(met.to(tl.int32), axis=1))
        logit = changed(logit, token, count, offset, drafted, width, once, each, factor, bias_ids, bias, biases, BIAS)
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


@triton.jit
def programs_of(sizes, ROWS: tl.constexpr):
    """How many programs change the rows of a request; sizes: as shape_some() has them."""
    _, _, _, rows, _, _, _, _, _, _, parts = sizes
    return parts * tl.cdiv(rows, ROWS)


@triton.jit
def shape_some(
    logits, stride, asked, sizes, program, vocabulary, ROWS: tl.constexpr, TOKENS: tl.constexpr, WIDTH: tl.constexpr
):  # fmt: skip
    """What one of programs_of() programs of each request does: a part of the tokens, in ROWS rows.

    logits [B * rows, vocabulary], changed; asked: an Asked. sizes: (stride of texts, stride of drafted, rows of
    parameters a request, rows of logits a request, room of a list, width of drafted, biases, bad words, tokens of the
    longest, endings, parts). TOKENS are changed together; WIDTH: a power of two, at least that of drafted.
    """
    text_stride, drafted_stride, step, rows, room, width, biases, sequences, longest, endings, parts = sizes
    programs = programs_of(sizes, ROWS)
    request, part = (program // programs).to(tl.int64), program % programs % parts
    lanes, row = tl.arange(0, TOKENS), (program % programs // parts * ROWS + tl.arange(0, ROWS))[:, None]
    inside, setting = row < rows, request * step
    at = logits + (request * rows + row) * stride
    drafted = asked.drafted + request * drafted_stride
    texts = asked.texts + request * text_stride
    # All loads that wait for none come first, then those that do, and writing last: else each would cost a trip more.
    prompt, length = tl.load(asked.prompt_lengths + request), tl.load(asked.text_lengths + request)
    offset = tl.load(asked.offset + request * rows + row, mask=inside, other=0)
    place = length + offset
    if asked.ending_ids is not None:
        ending_ids, min_tokens = asked.ending_ids + setting * endings, asked.min_tokens + setting
        ending, refused = early(
            min_tokens, ending_ids, endings, place, prompt, 0, vocabulary, part, parts, TOKENS
        )  # fmt: skip
    if asked.bias is not None:
        bias_ids, bias = asked.bias_ids + setting * biases, asked.bias + setting * biases
        if asked.listed is None:
            id = tl.load(bias_ids + lanes, mask=lanes < biases, other=-1)
            more = tl.load(bias + lanes, mask=lanes < biases, other=0.0)
            biased = inside & belongs(id, lanes < biases, vocabulary, part, parts)[None, :]
            logit = tl.load(at + id[None, :], mask=biased, other=0.0).to(tl.float64)
    if asked.bad_words is not None:
        bad_words = asked.bad_words + setting * sequences * longest
        last, banned = completed(
            bad_words, sequences, longest, texts, drafted, place, prompt, length, 0, vocabulary, part, parts, TOKENS
        )  # fmt: skip
    if asked.listed is not None:
        once, each = tl.load(asked.presence + setting), tl.load(asked.frequency + setting)
        factor, own = tl.load(asked.repetition + setting), request * parts + part
        if asked.bias is None:
            bias_ids, bias = asked.drafted, asked.presence  # of the types of biases, and not read
        penalise(
            at, inside, offset, drafted, width, tl.load(asked.found + own), asked.listed + own * room,
            asked.counts + own * room, room, vocabulary, part, parts, once, each, factor, bias_ids, bias, biases,
            asked.bias is not None, TOKENS, WIDTH,
        )  # fmt: skip
    elif asked.bias is not None:
        store(at + id[None, :], logit + more[None, :], biased)
        for start in range(TOKENS, biases, TOKENS):
            held = start + lanes < biases
            id = tl.load(bias_ids + start + lanes, mask=held, other=-1)
            more = tl.load(bias + start + lanes, mask=held, other=0.0)
            biased = inside & belongs(id, held, vocabulary, part, parts)[None, :]
            logit = tl.load(at + id[None, :], mask=biased, other=0.0).to(tl.float64)
            store(at + id[None, :], logit + more[None, :], biased)
    if (asked.listed is not None) | (asked.bias is not None):
        tl.debug_barrier()  # what follows may ban a token that another thread wrote
    nothing = tl.full((ROWS, TOKENS), float("-inf"), tl.float64)
    if asked.ending_ids is not None:
        store(at + ending[None, :], nothing, refused & inside)
        for start in range(TOKENS, endings, TOKENS):
            ending, refused = early(
                min_tokens, ending_ids, endings, place, prompt, start, vocabulary, part, parts, TOKENS
            )  # fmt: skip
            store(at + ending[None, :], nothing, refused & inside)
    if asked.bad_words is not None:
        store(at + last[None, :], nothing, banned & inside)
        for start in range(TOKENS, sequences, TOKENS):
            last, banned = completed(
                bad_words, sequences, longest, texts, drafted, place, prompt, length, start, vocabulary, part, parts,
                TOKENS,
            )  # fmt: skip
            store(at + last[None, :], nothing, banned & inside)


@triton.jit(do_not_specialize=[
    "text_stride", "drafted_stride", "step", "rows", "room", "width", "biases", "sequences", "longest", "endings",
    "parts",
])  # fmt: skip
def shape_kernel(
    logits, stride, asked, text_stride, drafted_stride, step, rows, room, width, biases, sequences, longest, endings,
    parts, vocabulary, ROWS: tl.constexpr, TOKENS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """See shape_some(). Grid: programs_of() for each request."""
    sizes = (text_stride, drafted_stride, step, rows, room, width, biases, sequences, longest, endings, parts)
    shape_some(logits, stride, asked, sizes, tl.program_id(0), vocabulary, ROWS, TOKENS, WIDTH)


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
