"""Penalties, biases and bans of a batch by kernels, in place; the plain twin is shaped.py."""

from __future__ import annotations

from jaxtyping import Int64, Shaped
from torch import Tensor

from specbench.core.mask import Mask
from specbench.kernels import launch_shape, launch_tally
from specbench.sampling.history import History, TextCounts
from specbench.sampling.shaping import BIAS, DELAY, FORBID, PENALISE, RESTRICT, THINK, Shaping


def shape_in_place(logits: Shaped[Tensor, "n V"], shaping: Shaping, history: History) -> None:
    """Applies penalties, biases and bans to logits in place, in one launch.

    ``allowed_token_ids`` and ``thinking_token_budget`` take one launch more each, and so do penalties if the history
    has no text counts.

    Args:
        logits: bf16, fp16 or fp32, last dimension contiguous, rows at any stride; the rows of a request are
            consecutive, and every request has the same number.
        shaping: one row a row of logits, equal for all rows of a request, or one row a request.

    Raises:
        ArgumentError: logits in a dtype or with strides that no kernel can take; not the same number of rows for every
            request.
    """
    if len(logits) == 0:
        return
    if RESTRICT in shaping.kinds:
        launch_shape.allow(logits, mask_of(shaping, len(logits)))
    if shaping.kinds & {PENALISE, BIAS, FORBID, DELAY}:
        launch_shape.shape(logits, _shaping_request(shaping, history, logits.shape[1]))
    if THINK in shaping.kinds:  # last, since it forces a token that others may ban
        launch_shape.end_thinking(
            logits, history.offset, history.texts, history.text_lengths, history.drafted,
            shaping.thinking_budget, shaping.thinking_start, shaping.thinking_end,
        )  # fmt: skip


def mask_of(shaping: Shaping, n: int) -> Mask:
    """Returns the tokens that ``allowed_token_ids`` leaves to n rows of logits."""
    return Mask(shaping.restricted, shaping.allowed, n // max(1, len(shaping.restricted)))


def count_tokens(
    texts: Int64[Tensor, "B capacity"],
    prompt_lengths: Int64[Tensor, " B"],
    text_lengths: Int64[Tensor, " B"],
    shaping: Shaping,
    vocabulary: int,
    memory: launch_tally.Counts | None = None,
) -> TextCounts:
    """Returns the tokens of texts with their counts, in one launch.

    Args:
        memory: to count in; None uses memory that is kept for the device's current stream.
    """
    lists = launch_tally.tally(texts, prompt_lengths, text_lengths, shaping.bias_ids, vocabulary, memory)
    return TextCounts(texts, text_lengths, vocabulary, *lists)


def _shaping_request(shaping: Shaping, history: History, vocabulary: int) -> launch_shape.ShapingRequest:
    request = launch_shape.ShapingRequest(
        history.offset, history.texts, history.prompt_lengths, history.text_lengths, history.drafted
    )
    if PENALISE in shaping.kinds:
        tally = history.tally
        if tally is None or not tally.is_of(history, vocabulary):
            tally = count_tokens(history.texts, history.prompt_lengths, history.text_lengths, shaping, vocabulary)
        request = request._replace(
            list_lengths=tally.list_lengths, listed=tally.listed, counts=tally.counts,
            presence=shaping.presence, frequency=shaping.frequency, repetition=shaping.repetition,
        )  # fmt: skip
    if BIAS in shaping.kinds:
        request = request._replace(bias_ids=shaping.bias_ids, bias=shaping.bias)
    if FORBID in shaping.kinds:
        request = request._replace(bad_words=shaping.bad_words)
    if DELAY in shaping.kinds:
        request = request._replace(min_tokens=shaping.min_tokens, ending_ids=shaping.ending_ids)
    return request
