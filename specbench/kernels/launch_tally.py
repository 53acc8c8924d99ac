"""Launches of the kernel that counts the tokens of texts."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field

import torch
import triton
from jaxtyping import Int32, Int64
from torch import Tensor

from specbench.core.errors import ArgumentError
from specbench.kernels.launch import run
from specbench.kernels.tally import tally_kernel
from specbench.kernels.workspace import OfGraphs, captures, current_stream

CHUNK = 2048  # tokens of a text that a program counts at once
TARGET_PROGRAMS = 1024  # a launch has about this many programs,
MAX_PARTS = 8  # and at most this many a request: a power of two


@dataclass
class Counts:
    """Memory for the counts of all tokens of a vocabulary, all 0 between launches; for one stream, grown as needed.

    A launch inside a CUDA graph uses the memory of its capture: run it once before with the largest number of requests.
    That memory is kept, as in :class:`specbench.kernels.workspace.Workspace`.
    """

    vocabulary: int
    counts: Tensor = field(default_factory=lambda: torch.zeros((0, 0), dtype=torch.int32))
    _of_graphs: OfGraphs = field(default_factory=OfGraphs, repr=False)

    def reserve(self, requests: int, device: torch.device) -> None:
        """Makes room for the counts of the given number of requests.

        Raises:
            ArgumentError: more is needed while a CUDA graph is being captured.
        """
        if requests <= len(self.counts) and self.counts.device == device:
            self._of_graphs.use(device)
            return
        if captures(device):
            raise ArgumentError("history: more texts than before a CUDA graph's capture")
        self._of_graphs.replace(self.counts)
        self.counts = torch.zeros((max(requests, len(self.counts)), self.vocabulary), dtype=torch.int32, device=device)


@functools.cache
def _counts(device: torch.device, stream: int, vocabulary: int) -> Counts:
    return Counts(vocabulary)


def tally(
    texts: Int64[Tensor, "B capacity"],
    prompt_lengths: Int64[Tensor, " B"],
    text_lengths: Int64[Tensor, " B"],
    bias_ids: Int64[Tensor, "n biases"],
    vocabulary: int,
    counts: Counts | None = None,
) -> tuple[Int32[Tensor, "B parts"], Int32[Tensor, "B parts room"], Int32[Tensor, "B parts room"]]:
    """Counts the tokens of texts, in one launch.

    Args:
        bias_ids: of Shaping, one row a request or the same number for each; these tokens are listed too.
        counts: memory; None uses memory that is kept for the device's current stream.

    Returns:
        For each part of a request, the number of its listed tokens, the tokens, and their counts; see tally_kernel.
    """
    requests, device = len(texts), texts.device
    if counts is None:
        counts = _counts(device, current_stream(device), vocabulary)
    counts.reserve(requests, device)
    columns, biases = texts.shape[1], bias_ids.shape[1]
    parts = min(MAX_PARTS, triton.next_power_of_2(triton.cdiv(TARGET_PROGRAMS, max(1, requests))))
    lengths = torch.empty((requests, parts), dtype=torch.int32, device=device)
    listed, times = torch.empty((2, requests, parts, columns + biases), dtype=torch.int32, device=device)
    if requests:
        run(
            tally_kernel, requests * parts,
            texts, texts.stride(0), prompt_lengths, text_lengths, bias_ids, counts.counts, lengths, listed, times,
            len(bias_ids) // requests, columns, biases, vocabulary, parts,
            CHUNK=min(CHUNK, triton.next_power_of_2(max(1, columns))), num_warps=8,
        )  # fmt: skip
    return lengths, listed, times
