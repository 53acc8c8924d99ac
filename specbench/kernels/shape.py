"""Penalties, biases and bans in place, on the tokens concerned alone. Twin: sampling/shaped.py, which has the formulas.

shape_kernel applies penalties, biases, bad words and min_tokens. The tokens of a request are divided by id among a few
programs, and so are its rows; no program waits for another. A program changes the tokens of its list (tally.py) and the
draft tokens that the list lacks; it counts the draft tokens before a row itself. Its loads take two trips to memory:
first everything that does not depend on a logit, then the logits. allow_kernel writes -inf over the tokens that
allowed_token_ids leaves out, and reads no logit.
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
    """The counts of tokens [1, m] among the first ``offset`` [rows, 1] of ``width`` draft tokens."""
    counts = tl.zeros_like(offset + token).to(tl.int32)
    for i in tl.range(0, width, loop_unroll_factor=4):
        counts += ((tl.load(drafted + i) == token) & (i < offset)).to(tl.int32)
    return counts


@triton.jit
def store(at, value, mask):
    """Writes float64 values in the logits' dtype, rounded through float32 as the twin does."""
    tl.store(at, value.to(tl.float32).to(at.dtype.element_ty), mask=mask)


@triton.jit
def changed(
    logit, token, count, offset, drafted, width, presence, frequency, factor, bias_ids, bias, biases, BIAS: tl.constexpr
):
    """The changed logits, float64 [rows, m], of tokens [m] with these counts, after ``offset`` draft tokens."""
    counted = count[None, :] + times(drafted, width, offset, token[None, :])
    if BIAS:
        for i in range(0, biases):
            logit += tl.where(tl.load(bias_ids + i) == token[None, :], tl.load(bias + i), 0.0)
    return penalised(logit, counted, presence, frequency, factor)


@triton.jit
def penalise(
    at, inside, offset, drafted, width, number, listed, counts, room, vocabulary, part, parts,
    presence, frequency, factor, bias_ids, bias, biases,
    BIAS: tl.constexpr, TOKENS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Changes the tokens of a list, and the draft tokens of this part that it lacks, in the rows that start ``at``."""
    lanes, place = tl.arange(0, TOKENS), tl.arange(0, WIDTH)
    # Neither load waits for the length of the list.
    token = tl.load(listed + lanes, mask=lanes < room, other=0)
    count = tl.load(counts + lanes, mask=lanes < room, other=0)
    own = tl.load(drafted + place, mask=place < width, other=-1).to(tl.int32)
    again = tl.max(((own[:, None] == own[None, :]) & (place[:, None] > place[None, :])).to(tl.int32), axis=1)
    mine = belongs(own, (place < width) & (again == 0), vocabulary, part, parts)
    fresh = tl.load(at + own[None, :], mask=inside & mine[None, :], other=0.0).to(tl.float64)
    known = tl.zeros((WIDTH,), tl.int32)
    for start in range(0, number, TOKENS):
        held = start + lanes < number
        listed_here = inside & held[None, :]
        logit = tl.load(at + token[None, :], mask=listed_here, other=0.0).to(tl.float64)
        met = (own[:, None] == token[None, :]) & held[None, :]
        known = tl.maximum(known, tl.max(met.to(tl.int32), axis=1))
        logit = changed(
            logit, token, count, offset, drafted, width, presence, frequency, factor, bias_ids, bias, biases, BIAS
        )
        store(at + token[None, :], logit, listed_here)
        more = start + TOKENS + lanes
        token = tl.load(listed + more, mask=more < number, other=0)
        count = tl.load(counts + more, mask=more < number, other=0)
    fresh = changed(
        fresh, own, known * 0, offset, drafted, width, presence, frequency, factor, bias_ids, bias, biases, False
    )  # fmt: skip
    store(at + own[None, :], fresh, inside & (mine & (known == 0))[None, :])


@triton.jit
def early(min_tokens, ending_ids, endings, place, prompt, start, vocabulary, part, parts, TOKENS: tl.constexpr):
    """TOKENS of the tokens that end a text, and whether each is banned from each row [rows, TOKENS]."""
    named = start + tl.arange(0, TOKENS) < endings
    ending = tl.load(ending_ids + start + tl.arange(0, TOKENS), mask=named, other=-1)
    refused = (place - prompt < tl.load(min_tokens)) & belongs(ending, named, vocabulary, part, parts)[None, :]
    return ending, refused


@triton.jit
def completed(
    bad_words, sequences, longest, texts, drafted, place, prompt, length, start, vocabulary, part, parts,
    TOKENS: tl.constexpr,
):  # fmt: skip
    """The last tokens of TOKENS bad words, and whether their other tokens precede each row [rows, TOKENS]."""
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


@triton.jit(do_not_specialize=[
    "text_stride", "drafted_stride", "step", "rows", "room", "width", "biases", "sequences", "longest", "endings",
    "parts",
])  # fmt: skip
def shape_kernel(
    logits, stride, shaping, text_stride, drafted_stride, step, rows, room, width, biases, sequences, longest, endings,
    parts, vocabulary, ROWS: tl.constexpr, TOKENS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """logits [B * rows, vocabulary], changed; shaping: a ShapingRequest.

    step: rows of parameters a request; rows: rows of logits a request; room: length of a list of tokens; width: draft
    tokens a request; biases, sequences, endings: biased tokens, bad words and ending tokens of a row of parameters;
    longest: tokens of the longest bad word; parts: lists a request. A program changes TOKENS tokens at a time in ROWS
    rows; WIDTH: a power of two, at least ``width``. Grid: B * parts * cdiv(rows, ROWS).
    """
    program, programs = tl.program_id(0), parts * tl.cdiv(rows, ROWS)
    request, part = (program // programs).to(tl.int64), program % programs % parts
    lanes, row = tl.arange(0, TOKENS), (program % programs // parts * ROWS + tl.arange(0, ROWS))[:, None]
    inside, setting = row < rows, request * step
    at = logits + (request * rows + row) * stride
    drafted = shaping.drafted + request * drafted_stride
    texts = shaping.texts + request * text_stride
    # Loads that wait for no other come first, then loads that do, then the stores: else each would cost a trip more.
    prompt, length = tl.load(shaping.prompt_lengths + request), tl.load(shaping.text_lengths + request)
    offset = tl.load(shaping.offset + request * rows + row, mask=inside, other=0)
    place = length + offset
    if shaping.ending_ids is not None:
        ending_ids, min_tokens = shaping.ending_ids + setting * endings, shaping.min_tokens + setting
        ending, refused = early(
            min_tokens, ending_ids, endings, place, prompt, 0, vocabulary, part, parts, TOKENS
        )  # fmt: skip
    if shaping.bias is not None:
        bias_ids, bias = shaping.bias_ids + setting * biases, shaping.bias + setting * biases
        if shaping.listed is None:
            id = tl.load(bias_ids + lanes, mask=lanes < biases, other=-1)
            more = tl.load(bias + lanes, mask=lanes < biases, other=0.0)
            biased = inside & belongs(id, lanes < biases, vocabulary, part, parts)[None, :]
            logit = tl.load(at + id[None, :], mask=biased, other=0.0).to(tl.float64)
    if shaping.bad_words is not None:
        bad_words = shaping.bad_words + setting * sequences * longest
        last, banned = completed(
            bad_words, sequences, longest, texts, drafted, place, prompt, length, 0, vocabulary, part, parts, TOKENS
        )  # fmt: skip
    if shaping.listed is not None:
        presence, frequency = tl.load(shaping.presence + setting), tl.load(shaping.frequency + setting)
        factor, own = tl.load(shaping.repetition + setting), request * parts + part
        if shaping.bias is None:
            bias_ids, bias = shaping.drafted, shaping.presence  # of the types of biases, and not read
        penalise(
            at, inside, offset, drafted, width, tl.load(shaping.list_lengths + own), shaping.listed + own * room,
            shaping.counts + own * room, room, vocabulary, part, parts,
            presence, frequency, factor, bias_ids, bias, biases, shaping.bias is not None, TOKENS, WIDTH,
        )  # fmt: skip
    elif shaping.bias is not None:
        store(at + id[None, :], logit + more[None, :], biased)
        for start in range(TOKENS, biases, TOKENS):
            held = start + lanes < biases
            id = tl.load(bias_ids + start + lanes, mask=held, other=-1)
            more = tl.load(bias + start + lanes, mask=held, other=0.0)
            biased = inside & belongs(id, held, vocabulary, part, parts)[None, :]
            logit = tl.load(at + id[None, :], mask=biased, other=0.0).to(tl.float64)
            store(at + id[None, :], logit + more[None, :], biased)
    if (shaping.listed is not None) | (shaping.bias is not None):
        tl.debug_barrier()  # what follows may ban a token that another thread wrote
    nothing = tl.full((ROWS, TOKENS), float("-inf"), tl.float64)
    if shaping.ending_ids is not None:
        store(at + ending[None, :], nothing, refused & inside)
        for start in range(TOKENS, endings, TOKENS):
            ending, refused = early(
                min_tokens, ending_ids, endings, place, prompt, start, vocabulary, part, parts, TOKENS
            )  # fmt: skip
            store(at + ending[None, :], nothing, refused & inside)
    if shaping.bad_words is not None:
        store(at + last[None, :], nothing, banned & inside)
        for start in range(TOKENS, sequences, TOKENS):
            last, banned = completed(
                bad_words, sequences, longest, texts, drafted, place, prompt, length, start, vocabulary, part, parts,
                TOKENS,
            )  # fmt: skip
            store(at + last[None, :], nothing, banned & inside)


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
