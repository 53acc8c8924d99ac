"""Penalties, biases and bans in place, on the tokens concerned alone. Twin: sampling/shaped.py, which has the formulas.

shape_kernel does all of it but allowed_token_ids in one launch. The tokens of a request are dealt out by id to a few
programs, none of which waits for another. Each counts its own tokens of the text, lists them and the drafted ones, each
once, and changes them in all rows of the request, with the drafted tokens that precede a row counted beside. There is a
count for every token of the vocabulary, 0 between launches: who counts takes its counts back, so that nothing of that
size is ever cleared or read. allow_kernel writes -inf to all that allowed_token_ids leaves out, and reads nothing of
the row.
"""

import triton
import triton.language as tl

GIVEN = tl.constexpr(1 << 30)  # in a count: the prompt holds the token
PROPOSED = tl.constexpr(1 << 29)  # the draft holds it
NEIGHBOURS = tl.constexpr(16)  # ids whose logits lie together in memory go to one program


@triton.jit
def belongs(token, held, vocabulary, part, parts):
    """Which of the tokens that are held belong to a program; none beyond the vocabulary."""
    return held & (token >= 0) & (token < vocabulary) & ((token // NEIGHBOURS) % parts == part)


@triton.jit
def count(
    text, columns, prompt, length, drafted, width, counts, listed, vocabulary, part, parts, CHUNK: tl.constexpr
):  # fmt: skip
    """Counts the tokens of a text that belong to this program, and lists each of them and of the drafted ones once.

    A count is how often the continuation holds the token; GIVEN besides if the prompt does, PROPOSED if the draft does.
    Returns how many are listed.
    """
    found, lanes = tl.zeros((), tl.int32), tl.arange(0, CHUNK)
    ahead = tl.load(text + lanes, mask=lanes < columns, other=-1)  # does not wait until the length is there
    for start in range(0, length + width, CHUNK):
        at = start + lanes
        behind = at >= length
        own = tl.load(drafted + at - length, mask=behind & (at < length + width), other=-1)
        token = tl.where(behind, own, ahead)
        ahead = tl.load(text + at + CHUNK, mask=at + CHUNK < columns, other=-1)
        held = belongs(token, at < length + width, vocabulary, part, parts)
        written = held & (at >= prompt) & (at < length)
        marked, mark = held & ((at < prompt) | behind), tl.where(behind, PROPOSED, GIVEN)
        first = marked & (tl.atomic_or(counts + token, mark, mask=marked, sem="relaxed") == 0)
        first = first | (written & (tl.atomic_add(counts + token, 1, mask=written, sem="relaxed") == 0))
        place = found + tl.cumsum(first.to(tl.int32), 0) - 1
        tl.store(listed + place, token.to(tl.int32), mask=first)
        found += tl.sum(first.to(tl.int32), 0)
    return found


@triton.jit
def penalised(logit, count, presence, frequency, repetition):
    """The logits, float64, of tokens with these counts, in which nothing is PROPOSED."""
    own = (count & (PROPOSED - 1)).to(tl.float64)
    scaled = tl.where(logit > 0, logit / repetition, logit * repetition)
    return tl.where(count > 0, scaled, logit) - frequency * own - tl.where(own > 0, presence, 0.0)


@triton.jit
def times(drafted, width, offset, token):
    """How often tokens [1, m] are among the first ``offset`` [rows, 1] of ``width`` drafted ones."""
    found = tl.zeros_like(offset + token).to(tl.int32)
    for i in range(0, width):
        found += ((tl.load(drafted + i) == token) & (i < offset)).to(tl.int32)
    return found


@triton.jit
def store(at, value, mask):
    """Writes float64 values in the logits' dtype, rounded through float32 as the twin does."""
    tl.store(at, value.to(tl.float32).to(at.dtype.element_ty), mask=mask)


@triton.jit
def penalise(
    logits, stride, offset_of, rows, drafted, width, token, held, count, once, each, factor, bias_ids, bias, biases,
    BIAS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Some tokens [m], no two of them alike, with their counts in the text, in every row of the request."""
    for start in range(0, rows, ROWS):
        row = (start + tl.arange(0, ROWS))[:, None]
        at = logits + row.to(tl.int64) * stride + token[None, :]
        inside = (row < rows) & held[None, :]
        logit = tl.load(at, mask=inside, other=0.0).to(tl.float64)
        offset = tl.load(offset_of + row, mask=row < rows, other=0)
        counted = (count & ~PROPOSED)[None, :] + times(drafted, width, offset, token[None, :])
        if BIAS:
            for i in range(0, biases):
                logit += tl.where(tl.load(bias_ids + i) == token[None, :], tl.load(bias + i), 0.0)
        store(at, penalised(logit, counted, once, each, factor), inside)


@triton.jit(
    do_not_specialize=["step", "rows", "columns", "width", "biases", "sequences", "longest", "endings", "parts"]
)
def shape_kernel(
    logits, stride, offset_of, texts, text_stride, prompt_lengths, text_lengths, drafted, drafted_stride,
    counts, listed, presence, frequency, repetition, bias_ids, bias, bad_words, min_tokens, ending_ids,
    step, rows, columns, width, biases, sequences, longest, endings, vocabulary, parts,
    PENALISE: tl.constexpr, BIAS: tl.constexpr, FORBID: tl.constexpr, DELAY: tl.constexpr,
    ROWS: tl.constexpr, CHUNK: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    """logits [B * rows, vocabulary], changed; the others as in Shaping and History, whose ``request`` is row // rows.

    counts int32 [B, vocabulary], all 0 before and after; listed int32 [B, parts, columns + width], scratch. Row
    ``request * step`` of Shaping is that of a request. CHUNK tokens of a text are counted together, TOKENS changed
    together in ROWS rows. Grid: B * parts.
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
    prompt, length = tl.load(prompt_lengths + request), tl.load(text_lengths + request)
    if PENALISE:
        once, each, factor = tl.load(presence + setting), tl.load(frequency + setting), tl.load(repetition + setting)
        counts += request * vocabulary
        listed += program * (columns + width)
        found = count(texts, columns, prompt, length, drafted, width, counts, listed, vocabulary, part, parts, CHUNK)
        tl.debug_barrier()  # what follows reads what other threads have counted and listed
    if BIAS:  # of tokens that are not listed; the others have it
        for start in range(0, biases, TOKENS):
            id = tl.load(bias_ids + start + lanes, mask=start + lanes < biases, other=-1)
            more = tl.load(bias + start + lanes, mask=start + lanes < biases, other=0.0)
            held = belongs(id, start + lanes < biases, vocabulary, part, parts)
            if PENALISE:
                held = held & (tl.load(counts + id, mask=held, other=1, cache_modifier=".cg") == 0)
            for first in range(0, rows, ROWS):
                row = (first + tl.arange(0, ROWS))[:, None]
                at, asked = logits + row.to(tl.int64) * stride + id[None, :], (row < rows) & held[None, :]
                store(at, tl.load(at, mask=asked, other=0.0).to(tl.float64) + more[None, :], asked)
    if PENALISE:
        if BIAS:
            tl.debug_barrier()  # counts are looked at above, and taken back below
        for start in range(0, found, TOKENS):
            held = start + lanes < found
            token = tl.load(listed + start + lanes, mask=held, other=0, cache_modifier=".cg")
            counted = tl.load(counts + token, mask=held, other=0, cache_modifier=".cg")
            penalise(
                logits, stride, offset_of, rows, drafted, width, token, held, counted,
                once, each, factor, bias_ids, bias, biases, BIAS, ROWS,
            )  # fmt: skip
            tl.store(counts + token, 0, mask=held)
    if PENALISE or BIAS:
        tl.debug_barrier()  # what follows may ban a token that another thread wrote
    for first in range(0, rows, ROWS):
        row = (first + tl.arange(0, ROWS))[:, None]
        place = length + tl.load(offset_of + row, mask=row < rows, other=0)
        if DELAY:
            early = (row < rows) & (place - prompt < tl.load(min_tokens + setting))
            for start in range(0, endings, TOKENS):
                named = start + lanes < endings
                ending = tl.load(ending_ids + setting * endings + start + lanes, mask=named, other=-1)
                refused = early & belongs(ending, named, vocabulary, part, parts)[None, :]
                at = logits + row.to(tl.int64) * stride + ending[None, :]
                store(at, tl.full((ROWS, TOKENS), float("-inf"), tl.float64), refused)
        if FORBID:
            for start in range(0, sequences, TOKENS):
                named = start + lanes < sequences
                words = bad_words + (setting * sequences + start + lanes) * longest
                last = tl.load(words, mask=named, other=-1)
                banned = (row < rows) & belongs(last, named, vocabulary, part, parts)[None, :]
                for back in range(1, longest):
                    wanted = tl.load(words + back, mask=named, other=-1)[None, :]
                    before = place - back
                    inside, behind = before >= prompt, before >= length
                    written = tl.load(texts + before, mask=inside & (before < length), other=-2)
                    own = tl.load(drafted + before - length, mask=inside & behind, other=-2)
                    banned = banned & ((wanted == -1) | (wanted == tl.where(behind, own, written)))
                at = logits + row.to(tl.int64) * stride + last[None, :]
                store(at, tl.full((ROWS, TOKENS), float("-inf"), tl.float64), banned)


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
