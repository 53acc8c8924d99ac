"""Launches of the kernels that apply penalties, biases and bans to logits in place."""

from __future__ import annotations

from typing import NamedTuple

import triton
from jaxtyping import Float64, Int32, Int64, Shaped
from torch import Tensor

from specbench.core.errors import ArgumentError
from specbench.core.mask import BITS, Mask
from specbench.kernels.launch import check_logits, row_tiles, run
from specbench.kernels.shape import allow_kernel, shape_kernel
from specbench.kernels.think import think_kernel

CHUNK = 1024  # tokens of a text that a program of think_kernel reads at once
MAX_PROGRAMS = 1024  # up to this many programs, each handles one row of one part of a request,
TOKENS_PER_ROW = 128  # and changes this many of its tokens at once;
MAX_ROWS_PER_PROGRAM = 8  # beyond, a program handles up to this many rows,
LOGITS_PER_PROGRAM = 1024  # and changes this many of their logits at once


class ShapingRequest(NamedTuple):
    """Penalties, biases, bad words and min_tokens of B requests, and the texts that they depend on.

    Parameters that no request uses are None; the kernel is then compiled without them. They have one row a request, or
    the same number for each, as in sampling.shaping.Shaping. Texts are those of sampling.History, lists of tokens and
    their counts those of tally_kernel.
    """

    offset: Int64[Tensor, " n"]
    texts: Int64[Tensor, "B capacity"]
    prompt_lengths: Int64[Tensor, " B"]
    text_lengths: Int64[Tensor, " B"]
    drafted: Int64[Tensor, "B width"]
    list_lengths: Int32[Tensor, "B parts"] | None = None
    listed: Int32[Tensor, "B parts room"] | None = None
    counts: Int32[Tensor, "B parts room"] | None = None
    presence: Float64[Tensor, " m"] | None = None
    frequency: Float64[Tensor, " m"] | None = None
    repetition: Float64[Tensor, " m"] | None = None
    bias_ids: Int64[Tensor, "m biases"] | None = None
    bias: Float64[Tensor, "m biases"] | None = None
    bad_words: Int64[Tensor, "m sequences longest"] | None = None
    min_tokens: Int64[Tensor, " m"] | None = None
    ending_ids: Int64[Tensor, "m endings"] | None = None


def shape(logits: Shaped[Tensor, "n V"], params: ShapingRequest) -> None:
    """Applies penalties, biases, bad words and min_tokens in place, in one launch.

    Args:
        logits: bf16, fp16 or fp32, last dimension contiguous, rows at any stride; the rows of a request are
            consecutive, and every request has the same number.
        params: the texts, and at least one parameter.

    Raises:
        ArgumentError: logits in a dtype or with strides that no kernel can take; not the same number of rows for every
            request.
    """
    check_logits("logits", logits)
    requests, (n, vocabulary) = len(params.texts), logits.shape
    rows = _rows_of_a_request(n, requests)
    if rows == 0:
        return
    used = (params.presence, params.bias_ids, params.bad_words, params.min_tokens)
    step = next(len(part) for part in used if part is not None) // requests
    parts, room = (1, 0) if params.listed is None else params.listed.shape[1:]
    sequences, longest = (0, 0) if params.bad_words is None else params.bad_words.shape[1:]
    width, lanes = params.drafted.shape[1], triton.next_power_of_2(rows)
    together, tokens = min(MAX_ROWS_PER_PROGRAM, lanes), LOGITS_PER_PROGRAM // min(MAX_ROWS_PER_PROGRAM, lanes)
    if requests * parts * rows <= MAX_PROGRAMS:
        together, tokens = 1, TOKENS_PER_ROW
    run(
        shape_kernel, requests * parts * triton.cdiv(rows, together),
        logits, logits.stride(0), params, params.texts.stride(0), params.drafted.stride(0), step, rows, room, width,
        _columns(params.bias_ids), sequences, longest, _columns(params.ending_ids), parts, vocabulary,
        ROWS=together, TOKENS=tokens, WIDTH=triton.next_power_of_2(max(1, width)), num_warps=4,
    )  # fmt: skip


def allow(logits: Shaped[Tensor, "n V"], mask: Mask) -> None:
    """Writes -inf in place over the tokens that a mask bans, in one launch.

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


def end_thinking(
    logits: Shaped[Tensor, "n V"],
    offset: Int64[Tensor, " n"],
    texts: Int64[Tensor, "B capacity"],
    text_lengths: Int64[Tensor, " B"],
    drafted: Int64[Tensor, "B width"],
    budget: Int64[Tensor, " m"],
    start: Int64[Tensor, " m"],
    end: Int64[Tensor, " m"],
) -> None:
    """Forces the end of thinking in place in the rows whose budget is spent, in one launch.

    Texts and parameters are those of ShapingRequest; ``budget`` is thinking_token_budget.

    Raises:
        ArgumentError: see :func:`shape`.
    """
    check_logits("logits", logits)
    requests, (n, vocabulary) = len(texts), logits.shape
    rows = _rows_of_a_request(n, requests)
    if rows > 0:
        run(
            think_kernel, n,
            logits, logits.stride(0), offset, texts, texts.stride(0), text_lengths, drafted, drafted.stride(0),
            budget, start, end, len(budget) // requests, rows, vocabulary,
            CHUNK=min(CHUNK, triton.next_power_of_2(texts.shape[1] + drafted.shape[1])),
            TILE=row_tiles(vocabulary)[0], num_warps=4,
        )  # fmt: skip


def _rows_of_a_request(n: int, requests: int) -> int:
    if n % max(1, requests):
        raise ArgumentError(f"history: {requests} requests have {n} rows of logits; each needs the same number")
    return n // max(1, requests)


def _columns(part: Tensor | None) -> int:
    return 0 if part is None else part.shape[1]
