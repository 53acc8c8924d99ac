"""Launches of the kernel that counts the tokens of texts."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any

import torch
import triton
from jaxtyping import Int32, Int64
from torch import Tensor

from specbench.core.errors import ArgumentError
from specbench.kernels import tally as kernels
from specbench.kernels.launch import run
from specbench.kernels.workspace import OfGraphs, captures

tally_kernel: Any = kernels.tally_kernel  # a checker of types would read the kernel's parameters as the launch's
CHUNK = 2048  # tokens of a text that are counted together
PROGRAMS, PARTS = 1024, 8  # programs in all, about, and at most those of a request: a power of two


@dataclass
class Counts:
    """The counts of texts' tokens, all 0 between launches; used on one stream and grown as needed.

    A launch inside a CUDA graph uses the memory there was when it was captured: run it once beforehand with the most
    requests. That memory is kept as :class:`specbench.kernels.workspace.Workspace` keeps its own.
    """

    vocabulary: int
    counts: Tensor = field(default_factory=lambda: torch.zeros((0, 0), dtype=torch.int32))
    _of_graphs: OfGraphs = field(default_factory=OfGraphs, repr=False)

    def reserve(self, requests: int, device: torch.device) -> None:
        """Memory for so many requests.

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


@dataclass(frozen=True)
class Tally:
    """The tokens of texts, each once, and how often they hold it; see tally_kernel.

    Attributes:
        texts, text_lengths, vocabulary: what was counted, as it was then.
        found, listed, times: the lists, of B requests in as many parts as ``found`` has columns.
    """

    texts: Int64[Tensor, "B capacity"]
    text_lengths: Int64[Tensor, " B"]
    vocabulary: int
    found: Int32[Tensor, "B parts"]
    listed: Int32[Tensor, "B parts room"]
    times: Int32[Tensor, "B parts room"]

    def is_of(self, history: Any, vocabulary: int) -> bool:
        """Whether these are the texts of a history, in the same memory."""
        same = self.texts is history.texts and self.text_lengths is history.text_lengths
        return same and self.vocabulary == vocabulary


def tally(
    texts: Int64[Tensor, "B capacity"],
    prompt_lengths: Int64[Tensor, " B"],
    text_lengths: Int64[Tensor, " B"],
    bias_ids: Int64[Tensor, "n biases"],
    vocabulary: int,
    counts: Counts | None = None,
) -> Tally:
    """Counts the tokens of texts, in one launch.

    Args:
        bias_ids: of Shaping, a row a request or as many for each; they are listed too.
        counts: memory; None takes some that is kept for the device's current stream.
    """
    requests, device = len(texts), texts.device
    if counts is None:
        stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
        counts = _counts(device, stream, vocabulary)
    counts.reserve(requests, device)
    columns, biases = texts.shape[1], bias_ids.shape[1]
    parts = min(PARTS, triton.next_power_of_2(triton.cdiv(PROGRAMS, max(1, requests))))
    found = torch.empty((requests, parts), dtype=torch.int32, device=device)
    listed, times = torch.empty((2, requests, parts, columns + biases), dtype=torch.int32, device=device)
    if requests:
        run(
            tally_kernel, requests * parts,
            texts, texts.stride(0), prompt_lengths, text_lengths, bias_ids, counts.counts, found, listed, times,
            len(bias_ids) // requests, columns, biases, vocabulary, parts,
            CHUNK=min(CHUNK, triton.next_power_of_2(max(1, columns))), num_warps=8,
        )  # fmt: skip
    return Tally(texts, text_lengths, vocabulary, found, listed, times)
