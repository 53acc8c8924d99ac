"""Which rows are looked at by kernels, and which by their plain twins."""

from __future__ import annotations

from torch import Tensor


def by_kernels(tensor: Tensor) -> bool:
    """Whether cutoffs and samples of these logits, or streams of these seeds, come from kernels: on a GPU."""
    return tensor.is_cuda
