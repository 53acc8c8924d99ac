"""The choice between kernels and their plain twins."""

from torch import Tensor


def by_kernels(tensor: Tensor) -> bool:
    """Returns whether kernels process these logits or seeds: on a GPU."""
    return tensor.is_cuda
