"""Which rows are looked at by kernels, and which by their plain twins."""

from __future__ import annotations

from torch import Tensor


def by_kernels(logits: Tensor) -> bool:
    """Whether cutoffs and samples of these logits come from the Triton kernels: on a GPU."""
    return logits.is_cuda
