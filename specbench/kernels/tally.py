"""Lists of the tokens of each text with their counts, which penalties need; made once a step.

The tokens of a request are divided by id among a few programs; no program waits for another. A program counts its
tokens of the text, and lists each of them once. Memory holds a count for every token of the vocabulary, 0 between
launches: a program resets the counts that it changed, so that nothing of vocabulary size is cleared or read.
"""

import triton
import triton.language as tl

GIVEN = tl.constexpr(1 << 30)  # in a count: the prompt holds the token
BIASED = tl.constexpr(1 << 29)  # during counting: the token has a bias
NEIGHBOURS = tl.constexpr(16)  # consecutive ids that one program handles, since their logits are neighbours


@triton.jit
def belongs(token, held, vocabulary, part, parts):
    """Whether each held token belongs to a program; False beyond the vocabulary. parts: a power of two."""
    inside = held & (token >= 0) & (token < vocabulary)
    return inside & ((token.to(tl.int32) // NEIGHBOURS & (parts - 1)) == part)  # 64 bits, or a remainder, take longer


@triton.jit
def append(listed, length, token, first):
    """Appends the tokens of which ``first`` is True to a list; returns its new length."""
    one = first.to(tl.int32)
    tl.store(listed + length + tl.cumsum(one, 0) - 1, token.to(tl.int32), mask=first)
    return length + tl.sum(one, 0)


@triton.jit(do_not_specialize=["step", "columns", "biases", "parts"])
def tally_kernel(
    texts, text_stride, prompt_lengths, text_lengths, bias_ids, counts, lengths, listed, times,
    step, columns, biases, vocabulary, parts, CHUNK: tl.constexpr,
):  # fmt: skip
    """lengths int32 [B, parts]; listed and times int32 [B, parts, columns + biases], whose first ``lengths`` count.

    times: how often the continuation holds the token; GIVEN besides if the prompt does. Biased tokens are listed too.
    counts int32 [B, vocabulary], all 0 before and after. The others are as in History and Shaping. Grid: B * parts.
    """
    program = tl.program_id(0).to(tl.int64)
    request, part, lanes = program // parts, (program % parts).to(tl.int32), tl.arange(0, CHUNK)
    texts += request * text_stride
    counts += request * vocabulary
    bias_ids += request * step * biases
    listed += program * (columns + biases)
    times += program * (columns + biases)
    prompt, length = tl.load(prompt_lengths + request), tl.load(text_lengths + request)
    number = tl.zeros((), tl.int32)
    ahead = tl.load(texts + lanes, mask=lanes < columns, other=-1)  # does not wait until the length is there
    for start in range(0, length, CHUNK):
        at, token = start + lanes, ahead
        ahead = tl.load(texts + at + CHUNK, mask=at + CHUNK < columns, other=-1)
        held = belongs(token, at < length, vocabulary, part, parts)
        given, written = held & (at < prompt), held & (at >= prompt)
        first = given & (tl.atomic_or(counts + token, GIVEN, mask=given, sem="relaxed") == 0)
        first = first | (written & (tl.atomic_add(counts + token, 1, mask=written, sem="relaxed") == 0))
        number = append(listed, number, token, first)
    for start in range(0, biases, CHUNK):
        token = tl.load(bias_ids + start + lanes, mask=start + lanes < biases, other=-1)
        held = belongs(token, start + lanes < biases, vocabulary, part, parts)
        first = held & (tl.atomic_or(counts + token, BIASED, mask=held, sem="relaxed") == 0)
        number = append(listed, number, token, first)
    tl.debug_barrier()  # what follows reads what other threads have counted and listed
    for start in range(0, number, CHUNK):
        held = start + lanes < number
        token = tl.load(listed + start + lanes, mask=held, other=0, cache_modifier=".cg")
        count = tl.load(counts + token, mask=held, other=0, cache_modifier=".cg")
        tl.store(times + start + lanes, count & ~BIASED, mask=held)
        tl.store(counts + token, 0, mask=held)
    tl.store(lengths + program, number)
