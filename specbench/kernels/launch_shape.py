"""Launches of the kernels that penalise, bias and ban tokens in place."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any

import torch
import triton
from jaxtyping import Shaped
from torch import Tensor

from specbench.errors import ArgumentError
from specbench.kernels import shape as kernels
from specbench.kernels.launch import check_logits, row_tiles, run
from specbench.kernels.think import think_kernel as _think_kernel

# A checker of types would read the kernels' parameters as the launches'.
count_kernel: Any = kernels.count_kernel
shape_kernel: Any = kernels.shape_kernel
allow_kernel: Any = kernels.allow_kernel
think_kernel: Any = _think_kernel
CHUNK = 1024  # tokens of a text that are looked at together
FEW = 64  # of biases, bad words and stop tokens, if no text is looked at
_ALONE = {"allowed_token_ids", "thinking_token_budget"}  # what has a kernel of its own


@dataclass
class Counts:
    """The counts of texts' tokens, kept from launch to launch on one stream, and grown as needed.

    A launch inside a CUDA graph uses the memory there was when it was captured: run it once beforehand with the most
    requests and the longest texts.
    """

    vocabulary: int
    counts: Tensor = field(default_factory=lambda: torch.zeros((0, 0), dtype=torch.int32))
    distinct: Tensor = field(default_factory=lambda: torch.zeros((0, 0), dtype=torch.int32))
    num_distinct: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int32))

    def reserve(self, requests: int, capacity: int, device: torch.device) -> None:
        """Memory for so many requests, whose texts have so many tokens at most.

        Raises:
            ArgumentError: more is needed while a CUDA graph is being captured.
        """
        held, room = self.distinct.shape
        if requests <= held and capacity <= room and self.counts.device == device:
            return
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            raise ArgumentError("history: more texts, or longer ones, than before a CUDA graph's capture")
        requests, capacity = max(requests, held), max(capacity, room)
        self.counts = torch.zeros((requests, self.vocabulary), dtype=torch.int32, device=device)
        self.distinct = torch.zeros((requests, capacity), dtype=torch.int32, device=device)
        self.num_distinct = torch.zeros(requests, dtype=torch.int32, device=device)


@functools.cache
def _counts(device: torch.device, stream: int, vocabulary: int) -> Counts:
    return Counts(vocabulary)


def shape(
    logits: Shaped[Tensor, "n V"], asked: Any, history: Any, counts: Counts | None = None
) -> Shaped[Tensor, "n V"]:
    """Applies penalties, biases and bans to logits in place, and returns them.

    One launch, and one more each for penalties, allowed_token_ids and thinking_token_budget.

    Args:
        logits: bf16, fp16 or fp32, last dimension contiguous, rows at any stride.
        asked, history: a :class:`specbench.sampling.shaping.Shaping`, a row a row of logits, and the
            :class:`specbench.sampling.History` of these rows; their room is above this one.
        counts: memory; None takes one that is kept for the device's current stream.

    Raises:
        ArgumentError: logits in a dtype or with strides that no kernel can take.
    """
    check_logits("logits", logits)
    (n, vocabulary), wanted = logits.shape, asked.asked
    if n == 0:
        return logits
    if "allowed_token_ids" in wanted:
        tile, tiles, _ = row_tiles(vocabulary)
        words = asked.allowed.shape[1]
        run(
            allow_kernel, n * tiles,
            logits, logits.stride(0), asked.restricted, asked.allowed, words, vocabulary, tiles, TILE=tile,
        )  # fmt: skip
    if wanted - _ALONE:
        _shape(logits, asked, history, counts)
    if "thinking_token_budget" in wanted:  # last, since it forces a token whatever bans it
        texts, drafted = history.texts, history.drafted
        run(
            think_kernel, n,
            logits, logits.stride(0), history.request, history.offset,
            texts, texts.stride(0), history.text_lengths, drafted, drafted.stride(0),
            asked.thinking_budget, asked.thinking_start, asked.thinking_end, vocabulary,
            CHUNK=_chunk(texts), TILE=row_tiles(vocabulary)[0], num_warps=4,
        )  # fmt: skip
    return logits


def _chunk(texts: Tensor) -> int:
    return min(CHUNK, triton.next_power_of_2(texts.shape[1]))


def _shape(logits: Tensor, asked: Any, history: Any, counts: Counts | None) -> None:
    """Penalties, biases, bad words and min_tokens."""
    (n, vocabulary), device, wanted = logits.shape, logits.device, asked.asked
    if counts is None:
        stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
        counts = _counts(device, stream, vocabulary)
    texts, drafted = history.texts, history.drafted
    penalises, chunk = "penalties" in wanted, FEW
    if penalises:
        chunk = _chunk(texts)
        counts.reserve(len(texts), texts.shape[1], device)
        run(
            count_kernel, len(texts),
            texts, texts.stride(0), history.prompt_lengths, history.text_lengths,
            counts.counts, counts.distinct, counts.num_distinct, vocabulary, counts.distinct.shape[1],
            CHUNK=chunk, num_warps=4,
        )  # fmt: skip
    _, sequences, longest = asked.bad_words.shape
    run(
        shape_kernel, n,
        logits, logits.stride(0), history.request, history.offset,
        texts, texts.stride(0), history.prompt_lengths, history.text_lengths, drafted, drafted.stride(0),
        counts.counts, counts.distinct, counts.num_distinct,
        asked.presence, asked.frequency, asked.repetition, asked.bias_ids, asked.bias,
        asked.bad_words, asked.min_tokens, asked.ending_ids,
        asked.bias_ids.shape[1], sequences, longest, asked.ending_ids.shape[1],
        vocabulary, counts.distinct.shape[1], drafted.shape[1],
        PENALISE=penalises, BIAS="logit_bias" in wanted, FORBID="bad_words" in wanted, DELAY="min_tokens" in wanted,
        DRAFTED=max(2, triton.next_power_of_2(drafted.shape[1])), CHUNK=chunk, num_warps=4,
    )  # fmt: skip
