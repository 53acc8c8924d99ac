"""Linear layers whose products of few rows are ours (kernels/product.py), in compiled steps.

Only there: a step that is driven by the host waits for the host. Layers are replaced in an engine's own copy of a model
(models/layer_copies.py).

A target in shards adds up twice a layer, where a matrix is cut between ranks by its inputs and each rank computes a
part of every sum. transformers does so by a call of ``torch.distributed`` in a hook; here such a layer is one of ours.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from jaxtyping import Float, Int32
from torch import Tensor, nn
from torch.nn.functional import linear as plain_linear

from specbench.core.switch import Switch
from specbench.extras.parallel import sharding
from specbench.kernels import launch_product, product_tiles
from specbench.models.packed import is_plain
from specbench.models.weights import local

ours = Switch()  # inside, layers take our products


def linear(
    x: Float[Tensor, "*n inputs"],
    weight: Float[Tensor, "outputs inputs"],
    bias: Float[Tensor, " outputs"] | None,
    counters: Int32[Tensor, " tiles"] | None,
) -> Float[Tensor, "*n outputs"]:
    """Returns what torch.nn.functional.linear does, by a kernel of ours inside ``ours`` if that is faster.

    Args:
        counters: see :func:`counters`.
    """
    takes_kernel = ours.on and counters is not None
    if takes_kernel and product_tiles.worth(x.numel() // x.shape[-1], *weight.shape, x.element_size()):
        return torch.ops.specbench.product(x, weight, bias, counters)
    return plain_linear(x, weight, bias)


def counters(weight: Tensor) -> Int32[Tensor, " tiles"] | None:
    """What our kernels need to add up parts of a product with this matrix; None if they have no code for it."""
    return launch_product.counters(weight) if launch_product.takes(weight) else None


class OwnLinear(nn.Module):
    """In place of a linear layer, whose parameters it keeps."""

    def __init__(self, layer: nn.Linear):
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.weight, self.bias = layer.weight, layer.bias
        self._counters = counters(local(layer.weight))

    def forward(self, input: Float[Tensor, "*n in"]) -> Float[Tensor, "*n out"]:
        """As nn.Linear."""
        return linear(input, self.weight, self.bias, self._counters)


class SummedLinear(OwnLinear):
    """In place of a linear layer that is cut by its inputs: this rank's part of the input gives the whole output."""

    def __init__(self, layer: nn.Linear):
        super().__init__(layer)
        self._part = local(layer.weight).detach()
        self._added = None if layer.bias is None else local(layer.bias).detach()

    def forward(self, input: Float[Tensor, "*n part"]) -> Float[Tensor, "*n out"]:
        """Returns the same on every rank; the bias is added once."""
        summed = linear(input, self._part, None, self._counters)
        dist.all_reduce(summed)
        return summed if self._added is None else summed + self._added


def install_sums(model: nn.Module) -> int:
    """Replaces the layers that are cut by their inputs, in place; returns their number. A second call does nothing."""
    cuts = sharding.cuts(model)
    layers = [(name, module) for name, module in model.named_modules() if cuts.get(module) == sharding.ROWWISE]
    for name, layer in layers:
        model.set_submodule(name, SummedLinear(layer))
    return len(layers)


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
