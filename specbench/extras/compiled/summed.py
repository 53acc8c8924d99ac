"""Products whose inputs are cut between ranks: each rank computes a part of every sum, and the parts are added up.

A target in shards adds up twice a layer. transformers does so by a call of ``torch.distributed`` in a hook of each such
layer; here the layers are replaced, so that the product is one of ours (products.py).
"""

from __future__ import annotations

import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedModel

from specbench.extras.compiled import products
from specbench.extras.parallel import sharding
from specbench.models.weights import local


class SummedLinear(nn.Module):
    """In place of a linear layer that is cut by its inputs: this rank's part of the input gives the whole output.

    Args:
        layer: the layer to replace, whose parameters it keeps.
    """

    def __init__(self, layer: nn.Linear):
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.weight, self.bias = layer.weight, layer.bias
        self._held = local(layer.weight).detach()
        self._counters = products.counters(self._held)
        self._added = None if layer.bias is None else local(layer.bias).detach()

    def forward(self, input: Float[Tensor, "*n part"]) -> Float[Tensor, "*n out"]:
        """The same on every rank; the bias is added once."""
        summed = products.linear(input, self._held, None, self._counters)
        dist.all_reduce(summed)
        return summed if self._added is None else summed + self._added


def install(model: PreTrainedModel) -> int:
    """Replaces the layers that are cut by their inputs, in place; returns their number. A second call does nothing."""
    cuts = sharding.cuts(model)
    layers = [(name, module) for name, module in model.named_modules() if cuts.get(module) == sharding.ROWWISE]
    for name, layer in layers:
        model.set_submodule(name, SummedLinear(layer))
    return len(layers)
