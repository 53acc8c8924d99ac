"""Penalties, biases and bans in place, on the tokens concerned alone. Twin: sampling/shaped.py, which has the formulas.

count_kernel finds the distinct tokens of each text, and how often each stands in it. shape_kernel then goes over those
of a row's text, not over the vocabulary, and counts the few drafted tokens beside them. Counts have a place for every
token of the vocabulary; the next launch takes back what the last one has left there, so that nothing of that size is
ever cleared or read. allow_kernel writes -inf to all that allowed_token_ids leaves out, and reads nothing of the row.
"""

import triton
import triton.language as tl

GIVEN = tl.constexpr(1 << 30)  # in a count: the prompt holds the token


@triton.jit(do_not_specialize=["capacity"])
def count_kernel(
    texts, text_stride, prompt_lengths, text_lengths, counts, distinct, num_distinct, vocabulary, capacity,
    CHUNK: tl.constexpr,
):  # fmt: skip
    """texts int64; counts int32 [B, vocabulary], distinct int32 [B, capacity], num_distinct int32 [B]. Grid: B.

    A count is how often the continuation holds the token, and GIVEN besides if the prompt does.
    """
    request, lanes = tl.program_id(0).to(tl.int64), tl.arange(0, CHUNK)
    counts += request * vocabulary
    distinct += request * capacity
    texts += request * text_stride
    before = tl.load(num_distinct + request)
    for start in range(0, before, CHUNK):
        held = start + lanes < before
        tl.store(counts + tl.load(distinct + start + lanes, mask=held, other=0), 0, mask=held)
    tl.debug_barrier()  # a token may be taken back by another thread than the one that counts it
    length, prompt = tl.load(text_lengths + request), tl.load(prompt_lengths + request)
    found = tl.zeros((), tl.int32)
    for start in range(0, length, CHUNK):
        at = start + lanes
        token = tl.load(texts + at, mask=at < length, other=0)
        held = (at < length) & (token >= 0) & (token < vocabulary)
        given, own = held & (at < prompt), held & (at >= prompt)
        first = given & (tl.atomic_or(counts + token, GIVEN, mask=given, sem="relaxed") == 0)
        first = first | (own & (tl.atomic_add(counts + token, 1, mask=own, sem="relaxed") == 0))
        place = found + tl.cumsum(first.to(tl.int32), 0) - 1
        tl.store(distinct + place, token.to(tl.int32), mask=first)
        found += tl.sum(first.to(tl.int32), 0)
    tl.store(num_distinct + request, found)


@triton.jit
def penalised(logit, count, presence, frequency, repetition):
    """The logits, float64, of tokens with these counts."""
    own = (count & (GIVEN - 1)).to(tl.float64)
    scaled = tl.where(logit > 0, logit / repetition, logit * repetition)
    return tl.where(count > 0, scaled, logit) - frequency * own - tl.where(own > 0, presence, 0.0)


@triton.jit
def times(drafted, offset, token):
    """How often each token is among the first ``offset`` drafted ones."""
    found = tl.zeros_like(token).to(tl.int32)
    for i in range(0, offset):
        found += (tl.load(drafted + i) == token).to(tl.int32)
    return found


@triton.jit
def biased(row, token, held, ids, bias, biases, BIAS: tl.constexpr):
    """The logits of some tokens as float64, with their bias."""
    logit = tl.load(row + token, mask=held, other=0.0).to(tl.float64)
    if BIAS:
        for i in range(0, biases):
            logit += tl.where(tl.load(ids + i) == token, tl.load(bias + i), 0.0)
    return logit


@triton.jit
def store(row, token, value, mask):
    """Writes float64 values in the logits' dtype, rounded through float32 as the twin does."""
    tl.store(row + token, value.to(tl.float32).to(row.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["biases", "sequences", "longest", "endings", "capacity", "width"])
def shape_kernel(
    logits, stride, request_of, offset_of, texts, text_stride, prompt_lengths, text_lengths, drafted, drafted_stride,
    counts, distinct, num_distinct, presence, frequency, repetition, bias_ids, bias, bad_words, min_tokens, ending_ids,
    biases, sequences, longest, endings, vocabulary, capacity, width,
    PENALISE: tl.constexpr, BIAS: tl.constexpr, FORBID: tl.constexpr, DELAY: tl.constexpr,
    DRAFTED: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """logits [n, vocabulary], changed; the others as in Shaping, History and count_kernel. Grid: n."""
    row, lanes = tl.program_id(0).to(tl.int64), tl.arange(0, CHUNK)
    request, offset = tl.load(request_of + row), tl.load(offset_of + row)
    logits += row * stride
    texts += request * text_stride
    drafted += request * drafted_stride
    prompt, length = tl.load(prompt_lengths + request), tl.load(text_lengths + request)
    if PENALISE:
        once, each, factor = tl.load(presence + row), tl.load(frequency + row), tl.load(repetition + row)
        counts += request * vocabulary
        distinct += request * capacity
        known = tl.load(num_distinct + request)
        for start in range(0, known, CHUNK):
            held = start + lanes < known
            token = tl.load(distinct + start + lanes, mask=held, other=0)
            count = tl.load(counts + token, mask=held, other=0) + times(drafted, offset, token)
            logit = biased(logits, token, held, bias_ids + row * biases, bias + row * biases, biases, BIAS)
            store(logits, token, penalised(logit, count, once, each, factor), held)
        # Drafted tokens that the text does not hold: each at its first place.
        i = tl.arange(0, DRAFTED)
        used = (i < offset) & (i < width)
        own = tl.load(drafted + i, mask=used, other=0)
        same = (own[:, None] == own[None, :]) & used[:, None] & used[None, :]
        repeated = tl.sum((same & (i[None, :] < i[:, None])).to(tl.int32), 1)
        new = used & (repeated == 0) & (tl.load(counts + own, mask=used, other=1) == 0)
        plain = biased(logits, own, new, bias_ids + row * biases, bias + row * biases, biases, BIAS)
        store(logits, own, penalised(plain, tl.sum(same.to(tl.int32), 1), once, each, factor), new)
    if BIAS:  # of tokens that nothing penalises; the others have it
        for start in range(0, biases, CHUNK):
            id = tl.load(bias_ids + row * biases + start + lanes, mask=start + lanes < biases, other=-1)
            asked = (id >= 0) & (id < vocabulary)
            more = tl.load(bias + row * biases + start + lanes, mask=asked, other=0.0)
            if PENALISE:
                asked = asked & (tl.load(counts + id, mask=asked, other=0) == 0) & (times(drafted, offset, id) == 0)
            store(logits, id, tl.load(logits + id, mask=asked, other=0.0).to(tl.float64) + more, asked)
    if PENALISE or BIAS:
        tl.debug_barrier()  # what follows may ban a token that another thread wrote
    place = length + offset
    if DELAY:
        early = place - prompt < tl.load(min_tokens + row)
        for start in range(0, endings, CHUNK):
            ending = tl.load(ending_ids + row * endings + start + lanes, mask=start + lanes < endings, other=-1)
            refused = early & (ending >= 0) & (ending < vocabulary)
            store(logits, ending, tl.full((CHUNK,), float("-inf"), tl.float64), refused)
    if FORBID:
        for start in range(0, sequences, CHUNK):
            listed = start + lanes < sequences
            words = bad_words + (row * sequences + start + lanes) * longest
            last = tl.load(words, mask=listed, other=-1)
            banned = (last >= 0) & (last < vocabulary)
            for back in range(1, longest):
                wanted = tl.load(words + back, mask=listed, other=-1)
                at = place - back
                inside, behind = at >= prompt, at >= length
                written = tl.load(texts + at, mask=inside & (at < length), other=-2)
                before = tl.where(behind, tl.load(drafted + at - length, mask=inside & behind, other=-2), written)
                banned = banned & ((wanted == -1) | (wanted == before))
            store(logits, last, tl.full((CHUNK,), float("-inf"), tl.float64), banned)


@triton.jit(do_not_specialize=["words", "tiles"])
def allow_kernel(logits, stride, restricted, allowed, words, vocabulary, tiles, TILE: tl.constexpr):
    """logits [n, vocabulary], changed; restricted bool [n], allowed int32 [n, words]. Grid: n * tiles."""
    row = (tl.program_id(0) // tiles).to(tl.int64)
    if tl.load(restricted + row):
        token = (tl.program_id(0) % tiles) * TILE + tl.arange(0, TILE)
        word = tl.load(allowed + row * words + token // 32, mask=token // 32 < words, other=0)
        banned = ((word >> (token % 32)) & 1) == 0
        value = tl.full((TILE,), float("-inf"), tl.float64)
        store(logits + row * stride, token, value, banned & (token < vocabulary))
