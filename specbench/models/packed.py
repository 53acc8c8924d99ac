"""Linear layers with a second copy of their weights, in the order in which a compiled CPU step reads them.

The copy is read inside ``reading()`` alone. Everything else, transformers' own decoders among it, computes with the
layer's weights as before.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import linear

from specbench.core.switch import Switch
from specbench.kernels import cpu_product

reading = Switch()  # inside, layers read their packed weights


class PackedLinear(nn.Linear):
    """In place of a linear layer, whose parameters it keeps. Its copy takes as much memory, or half (``pack``)."""

    def __init__(self, layer: nn.Linear):
        nn.Module.__init__(self)  # no parameters of its own
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.weight, self.bias = layer.weight, layer.bias
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
        if not reading.on or self._packed is None:
            return linear(input, self.weight, self.bias)
        output = cpu_product.product(input, self._packed, self.out_features)
        return output if self.bias is None else output + self.bias


def is_plain(layer: object) -> bool:
    """Whether it is a linear layer and nothing more: not quantised, adapted or replaced, and without hooks."""
    return type(layer) is nn.Linear and not (layer._forward_hooks or layer._forward_pre_hooks)


def install(model: nn.Module) -> None:
    """Replaces the plain linear layers of a model, in place, and packs their weights; again packs what has changed."""
    for name, layer in list(model.named_modules(remove_duplicate=False)):
        if is_plain(layer):
            model.set_submodule(name, PackedLinear(layer))
    for layer in model.modules():
        if isinstance(layer, PackedLinear):
            layer.pack()
