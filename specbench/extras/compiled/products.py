"""Linear layers whose products of few rows are ours (kernels/product.py), in compiled steps.

Only there: a step that is driven by the host waits for the host, and transformers' own decoders, which are timed beside
ours with the same models, keep PyTorch's products.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int32
from torch import Tensor, nn
from torch.nn.functional import linear as plain_linear

from specbench.core.switch import Switch
from specbench.kernels import launch_product

ours = Switch()  # inside, layers take our products


def linear(
    x: Float[Tensor, "*n inputs"],
    weight: Float[Tensor, "outputs inputs"],
    bias: Float[Tensor, " outputs"] | None,
    counters: Int32[Tensor, " tiles"] | None,
) -> Float[Tensor, "*n outputs"]:
    """As torch.nn.functional.linear.

    Args:
        counters: see :func:`counters`.
    """
    if is_ours(x, weight, counters):
        return torch.ops.specbench.product(x, weight, bias, counters)
    return plain_linear(x, weight, bias)


def is_ours(x: Tensor, weight: Tensor, counters: Tensor | None) -> bool:
    """Whether a product is ours, here and now."""
    if not ours.on or counters is None:
        return False
    return launch_product.worth(x.numel() // x.shape[-1], *weight.shape, x.element_size())


def counters(weight: Tensor) -> Int32[Tensor, " tiles"] | None:
    """What our kernels need to add up parts of a product with this matrix; None if they have no code for it."""
    return launch_product.counters(weight) if launch_product.takes(weight) else None


class OwnLinear(nn.Module):
    """In place of a linear layer, whose parameters it keeps."""

    def __init__(self, layer: nn.Linear):
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.weight, self.bias = layer.weight, layer.bias
        self._counters = counters(layer.weight)

    def forward(self, input: Float[Tensor, "*n in"]) -> Float[Tensor, "*n out"]:
        """As nn.Linear."""
        return linear(input, self.weight, self.bias, self._counters)


def install(model: nn.Module) -> int:
    """Replaces the linear layers that our kernels have code for, in place, and says how many; again does nothing.

    Layers are left alone that are no plain nn.Linear (quantised or adapted ones, and layers already replaced),
    that have hooks, or that are cut between ranks. Weights stay where they are.
    """
    layers = [
        (name, module)
        for name, module in model.named_modules(remove_duplicate=False)
        if is_plain(module) and type(module.weight) is nn.Parameter and launch_product.takes(module.weight)
    ]
    for name, layer in layers:
        model.set_submodule(name, OwnLinear(layer))
    return len(layers)


def is_plain(layer: object) -> bool:
    """Whether it is a linear layer and nothing more: not quantised, adapted or replaced, and without hooks."""
    return type(layer) is nn.Linear and not (layer._forward_hooks or layer._forward_pre_hooks)
