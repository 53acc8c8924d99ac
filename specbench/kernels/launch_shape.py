"""Launches of the kernels that penalise, bias and ban tokens in place."""

from __future__ import annotations

from typing import Any

import triton
from jaxtyping import Shaped
from torch import Tensor

from specbench.errors import ArgumentError
from specbench.kernels import shape as kernels
from specbench.kernels.launch import check_logits, row_tiles, run
from specbench.kernels.launch_tally import Counts, tally
from specbench.kernels.think import think_kernel as _think_kernel
from specbench.masked_rows import Mask

# A checker of types would read the kernels' parameters as the launches'.
shape_kernel: Any = kernels.shape_kernel
allow_kernel: Any = kernels.allow_kernel
think_kernel: Any = _think_kernel
BITS = 32  # of allowed_token_ids, in a word
CHUNK = 1024  # tokens of a text that are looked through together
ELEMENTS = 1024  # logits that a program changes together,
ROWS = 8  # in at most so many rows
_ALONE = {"allowed_token_ids", "thinking_token_budget"}  # what has a kernel of its own


def shape(
    logits: Shaped[Tensor, "n V"], asked: Any, history: Any, counts: Counts | None = None
) -> Shaped[Tensor, "n V"]:
    """Applies penalties, biases and bans to logits in place, and returns them.

    One launch, and one more each for allowed_token_ids, for thinking_token_budget, and, if the history has no tally and
    there are penalties, for that.

    Args:
        logits: bf16, fp16 or fp32, last dimension contiguous, rows at any stride; those of a request stand together, as
            many for each.
        asked: a :class:`specbench.sampling.shaping.Shaping`, a row a row of logits, alike for all rows of a request, or
            a row a request.
        history: the :class:`specbench.sampling.History` of the rows; the room of both is above this one.
        counts: memory to count in; None takes some that is kept for the device's current stream.

    Raises:
        ArgumentError: logits in a dtype or with strides that no kernel can take; not as many rows for each request.
    """
    check_logits("logits", logits)
    n, vocabulary = logits.shape
    if n == 0:
        return logits
    wanted, requests = asked.asked, len(history.texts)
    if n % requests:
        raise ArgumentError(f"history: {requests} requests have {n} rows of logits; as many for each are needed")
    rows = n // requests
    step = rows if len(asked.presence) == n else 1
    if "allowed_token_ids" in wanted:
        allow(logits, mask_of(asked, n))
    if wanted - _ALONE:
        _shape(logits, asked, history, counts, rows, step)
    if "thinking_token_budget" in wanted:  # last, since it forces a token whatever bans it
        texts, drafted = history.texts, history.drafted
        run(
            think_kernel, n,
            logits, logits.stride(0), history.offset,
            texts, texts.stride(0), history.text_lengths, drafted, drafted.stride(0),
            asked.thinking_budget, asked.thinking_start, asked.thinking_end, step, rows, vocabulary,
            CHUNK=_chunk(history), TILE=row_tiles(vocabulary)[0], num_warps=4,
        )  # fmt: skip
    return logits


def mask_of(asked: Any, n: int) -> Mask:
    """What allowed_token_ids leaves to n rows of logits; the arguments are those of :func:`shape`."""
    return Mask(asked.restricted, asked.allowed, n // len(asked.restricted))


def allow(logits: Shaped[Tensor, "n V"], mask: Mask) -> Shaped[Tensor, "n V"]:
    """Writes -inf in place to what a mask bans, and returns the logits; one launch.

    Raises:
        ArgumentError: see :func:`shape`.
    """
    check_logits("logits", logits)
    n, vocabulary = logits.shape
    tile, tiles, _ = row_tiles(vocabulary)
    if n > 0:
        run(
            allow_kernel, n * tiles,
            logits, logits.stride(0), mask.restricted, mask.bits, mask.rows, mask.bits.shape[1], vocabulary, tiles,
            TILE=tile, WORDS=max(1, tile // BITS),
        )  # fmt: skip
    return logits


def _chunk(history: Any) -> int:
    return min(CHUNK, triton.next_power_of_2(history.texts.shape[1] + history.drafted.shape[1]))


def _shape(logits: Tensor, asked: Any, history: Any, counts: Counts | None, rows: int, step: int) -> None:
    """Penalties, biases, bad words and min_tokens, of ``rows`` rows a request."""
    (n, vocabulary), wanted = logits.shape, asked.asked
    texts, drafted, tallied = history.texts, history.drafted, history.tally
    penalises, unused = "penalties" in wanted, history.offset
    parts, lists, room = 1, (unused, unused, unused), 0
    if penalises:
        if tallied is None or not tallied.is_of(history, vocabulary):
            given = (texts, history.prompt_lengths, history.text_lengths, asked.bias_ids, vocabulary)
            tallied = tally(*given, counts)
        lists, parts, room = (
            (tallied.found, tallied.listed, tallied.times),
            tallied.listed.shape[1],
            tallied.listed.shape[2],
        )
    _, sequences, longest = asked.bad_words.shape
    together, width = min(ROWS, triton.next_power_of_2(rows)), triton.next_power_of_2(max(1, drafted.shape[1]))
    run(
        shape_kernel, n // rows * parts,
        logits, logits.stride(0), history.offset,
        texts, texts.stride(0), history.prompt_lengths, history.text_lengths, drafted, drafted.stride(0),
        *lists, asked.presence, asked.frequency, asked.repetition, asked.bias_ids, asked.bias,
        asked.bad_words, asked.min_tokens, asked.ending_ids,
        step, rows, room, drafted.shape[1], asked.bias_ids.shape[1], sequences, longest,
        asked.ending_ids.shape[1], vocabulary, parts,
        PENALISE=penalises, BIAS="logit_bias" in wanted, FORBID="bad_words" in wanted, DELAY="min_tokens" in wanted,
        ROWS=together, TOKENS=ELEMENTS // together, WIDTH=width, num_warps=4,
    )  # fmt: skip
