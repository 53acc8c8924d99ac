"""Linear layers with a second copy of their weights, in the order in which a compiled CPU step reads them."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import linear

from specbench.kernels import cpu_product


class PackedLinear(nn.Module):
    """In place of a linear layer, whose parameters it keeps. Its copy takes as much memory, or half (``pack``)."""

    weight: Tensor
    bias: Tensor | None

    def __init__(self, layer: nn.Linear):
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self._parameters = layer._parameters
        self._packed: Tensor | None = None
        self._packed_version: tuple[object, ...] = ()

    def pack(self) -> None:
        """Copies the weights, if they have changed since."""
        version = (self.weight.data_ptr(), self.weight._version, self.weight.dtype)
        if version != self._packed_version:
            self._packed = cpu_product.pack(self.weight) if self.weight.dtype == torch.float32 else None
            self._packed_version = version

    def forward(self, input: Float[Tensor, "*n in"]) -> Float[Tensor, "*n out"]:
        """As nn.Linear."""
        if self._packed is None:
            return linear(input, self.weight, self.bias)
        output = cpu_product.product(input, self._packed, self.out_features)
        return output if self.bias is None else output + self.bias


def is_plain(layer: object) -> bool:
    """Whether it is a linear layer and nothing more: not quantised, adapted or replaced, and without hooks."""
    return type(layer) is nn.Linear and not (layer._forward_hooks or layer._forward_pre_hooks)


def install(model: nn.Module) -> None:
    """Replaces the plain linear layers of a model, in place, and packs their weights; again packs what has changed.

    Args:
        model: an engine's own copy (layer_copies.py), since every pass through it reads the packed weights.
    """
    for name, layer in list(model.named_modules(remove_duplicate=False)):
        if is_plain(layer):
            model.set_submodule(name, PackedLinear(layer))
    for layer in model.modules():
        if isinstance(layer, PackedLinear):
            layer.pack()
