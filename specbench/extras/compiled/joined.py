"""Projections of one input as one product: queries, keys and values; gate and up.

A step of few tokens waits for weights, and a small matrix cannot keep all of a GPU busy while it is read: at one
token, a product with 2048 x 512 takes an H200 as long as one with 2048 x 2048 (experiments/decode_speed.md). Layers are
replaced in an engine's own copy of a model (models/layer_copies.py). The weights of both become views of one matrix: no
memory is added, and checkpoints, :meth:`PreTrainedModel.state_dict` among them, are the same. Graphs that other engines
captured before keep the old weights for as long as these graphs are kept.

Layers of a sharded model are joined on each rank: layers cut by their outputs are given the same whole input,
and each of their outputs is this rank's own. So the product of the joined shards has what each would have computed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float, Int32
from torch import Tensor, nn

from specbench.extras.compiled import products
from specbench.extras.parallel import sharding
from specbench.models.packed import is_plain
from specbench.models.weights import local

# By the names that transformers has for them: layers of one module that are given the same tensor.
SIBLINGS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


@dataclass
class Product:
    """One product and the layers that share it.

    Attributes:
        weight, bias, sizes: of a sharded model what this rank has of them.
        counters: of its kernel (products.py).
        of, parts: the input, and the outputs of the layers that have not taken theirs yet.
    """

    weight: Float[Tensor, "out in"]
    bias: Float[Tensor, " out"] | None
    sizes: list[int]
    counters: Int32[Tensor, " tiles"] | None = None
    of: Tensor | None = None
    parts: dict[int, Tensor] = field(default_factory=dict)

    def take(self, place: int, x: Float[Tensor, "*n in"]) -> Float[Tensor, "*n part"]:
        """Returns the output of the layer at ``place`` for x; the first call computes the outputs of all layers."""
        if self.of is not x or place not in self.parts:
            self.of = x
            made = products.linear(x, self.weight, self.bias, self.counters)
            self.parts = dict(enumerate(made.split(self.sizes, dim=-1)))
        part = self.parts.pop(place)
        if not self.parts:
            self.of = None  # nothing is kept beyond the layer
        return part


class JoinedLinear(nn.Module):
    """In place of a linear layer: its output is a part of a shared product.

    Args:
        layer: the layer to replace; parameters are cut between ranks as that one's.
        place: which part of the product is its own.
    """

    weight: Tensor
    bias: Tensor | None

    def __init__(self, layer: nn.Linear, product: Product, place: int):
        super().__init__()
        self.out_features, self.in_features = layer.out_features, layer.in_features
        layer.weight = _parameter(layer.weight, product.weight.split(product.sizes)[place])
        if product.bias is not None:
            layer.bias = _parameter(layer.bias, product.bias.split(product.sizes)[place])
        self._parameters = layer._parameters
        self.product, self.place = product, place

    def forward(self, input: Float[Tensor, "*n in"]) -> Float[Tensor, "*n part"]:
        """As nn.Linear."""
        return self.product.take(self.place, input)


def join(model: nn.Module) -> int:
    """Joins what can be joined in a model, in place, and says how many products there are now; again does nothing.

    Layers are left alone that are no plain nn.Linear (quantised or adapted ones), that have hooks, that are cut in
    another way than by their outputs, or of which some have a bias and others none. No gradients flow through those
    that are joined.
    """
    products, cuts = 0, sharding.cuts(model)
    for module in list(model.modules()):
        for names in SIBLINGS:
            layers: list[Any] = [getattr(module, name, None) for name in names]
            if _can_be_joined(layers, cuts):
                for name, joined in zip(names, _joined(layers), strict=True):
                    setattr(module, name, joined)
                products += 1
    return products


def _can_be_joined(layers: list[Any], cuts: Mapping[nn.Module, str]) -> bool:
    if not all(map(is_plain, layers)):
        return False
    kinds = {(type(layer.weight), layer.weight.dtype, layer.weight.device, layer.bias is None) for layer in layers}
    ways = {cuts.get(layer) if sharding.is_shard(layer.weight) else None for layer in layers}
    plain = ways == {None} and type(layers[0].weight) is nn.Parameter
    return len(kinds) == 1 and (plain or ways == {sharding.COLUMNWISE})


@torch.no_grad()
def _joined(layers: list[nn.Linear]) -> list[JoinedLinear]:
    weight = torch.cat([local(layer.weight) for layer in layers])
    bias = None if layers[0].bias is None else torch.cat([local(layer.bias) for layer in layers])
    sizes = [len(local(layer.weight)) for layer in layers]
    product = Product(weight, bias, sizes, products.counters(weight))
    return [JoinedLinear(layer, product, place) for place, layer in enumerate(layers)]


def _parameter(before: Tensor, part: Tensor) -> nn.Parameter:
    return nn.Parameter(sharding.in_place_of(before, part), requires_grad=False)
