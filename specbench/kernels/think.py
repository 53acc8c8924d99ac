"""Forces the end of thinking once its budget is spent. Twin: thinking_spent of sampling/shaped.py, which has the rule.

A program searches for the last end of thinking before its row's position, and then for the first start after it. It
writes only the rows whose end is forced, which happens once for each time that a request thinks.
"""

import triton
import triton.language as tl

from specbench.kernels.shape import store


@triton.jit
def before(texts, drafted, length, place, at):
    """The tokens at the positions ``at`` of the text and the draft after it; -2 at ``place`` and beyond."""
    written = tl.load(texts + at, mask=(at < length) & (at < place), other=-2)
    return tl.where(at < length, written, tl.load(drafted + at - length, mask=(at >= length) & (at < place), other=-2))


@triton.jit(do_not_specialize=["step", "rows"])
def think_kernel(
    logits, stride, offset_of, texts, text_stride, text_lengths, drafted, drafted_stride,
    thinking_budget, thinking_start, thinking_end, step, rows, vocabulary,
    CHUNK: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """logits [B * rows, vocabulary], changed; the others as in Shaping and History, and as shape_kernel has them.

    Grid: B * rows.
    """
    row, lanes = tl.program_id(0).to(tl.int64), tl.arange(0, CHUNK)
    request = row // rows
    setting = request * step
    budget = tl.load(thinking_budget + setting)
    if budget >= 0:
        length = tl.load(text_lengths + request)
        place = length + tl.load(offset_of + row)
        texts += request * text_stride
        drafted += request * drafted_stride
        start, end = tl.load(thinking_start + setting), tl.load(thinking_end + setting)
        ended = tl.full((), -1, tl.int64)
        for first in range(0, place, CHUNK):
            at = first + lanes.to(tl.int64)
            token = before(texts, drafted, length, place, at)
            ended = tl.maximum(ended, tl.max(tl.where(token == end, at, -1), 0))
        started = place
        for first in range(0, place, CHUNK):
            at = first + lanes.to(tl.int64)
            token = before(texts, drafted, length, place, at)
            started = tl.minimum(started, tl.min(tl.where((token == start) & (at > ended), at, place), 0))
        if place - started - 1 >= budget:
            for tile in range(0, vocabulary, TILE):
                id = tile + tl.arange(0, TILE)
                value = tl.where(id == end, 0.0, float("-inf")).to(tl.float64)
                store(logits + row * stride + id, value, id < vocabulary)
