"""Projections of one input as one product: queries, keys and values; gate and up.

A step of few tokens waits for weights, and a small matrix cannot keep all of a GPU busy while it is read: at one
token, a product with 2048 x 512 takes an H200 as long as one with 2048 x 2048 (experiments/decode_speed.md). Models of
transformers stay as they are but for these layers, whose weights become views of one matrix: no memory is added, and
checkpoints, :meth:`PreTrainedModel.state_dict` among them, are the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import linear

# By the names that transformers has for them: layers of one module that are given the same tensor.
SIBLINGS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


@dataclass
class Product:
    """One product and the layers that share it.

    Attributes:
        of, parts: while some layers have not asked yet: the input, and what each is to get.
    """

    weight: Float[Tensor, "out in"]
    bias: Float[Tensor, " out"] | None
    sizes: list[int]
    of: Tensor | None = None
    parts: dict[int, Tensor] = field(default_factory=dict)

    def take(self, place: int, x: Float[Tensor, "*n in"]) -> Float[Tensor, "*n part"]:
        """What the layer at ``place`` makes of x: the first to be asked computes those of all."""
        if self.of is not x or place not in self.parts:
            self.of = x
            self.parts = dict(enumerate(linear(x, self.weight, self.bias).split(self.sizes, dim=-1)))
        part = self.parts.pop(place)
        if not self.parts:
            self.of = None  # nothing is kept beyond the layer
        return part


class JoinedLinear(nn.Module):
    """In place of a linear layer: its output is a part of a shared product."""

    def __init__(self, product: Product, place: int):
        super().__init__()
        weight = product.weight.split(product.sizes)[place]
        bias = None if product.bias is None else product.bias.split(product.sizes)[place]
        self.out_features, self.in_features = weight.shape
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)
        self.product, self.place = product, place

    def forward(self, input: Float[Tensor, "*n in"]) -> Float[Tensor, "*n part"]:
        """As nn.Linear."""
        return self.product.take(self.place, input)


def join(model: nn.Module) -> int:
    """Joins what can be joined in a model, in place, and says how many products there are now; again does nothing.

    Layers are left alone that are no plain nn.Linear (quantised, adapted or sharded ones), that have hooks, or of which
    some have a bias and others none. No gradients flow through those that are joined.
    """
    products = 0
    for module in list(model.modules()):
        for names in SIBLINGS:
            layers: list[Any] = [getattr(module, name, None) for name in names]
            if _can_be_joined(layers):
                for name, joined in zip(names, _joined(layers), strict=True):
                    setattr(module, name, joined)
                products += 1
    return products


def _can_be_joined(layers: list[Any]) -> bool:
    if any(type(each) is not nn.Linear or each._forward_hooks or each._forward_pre_hooks for each in layers):
        return False
    kinds = {(type(each.weight), each.weight.dtype, each.weight.device, each.bias is None) for each in layers}
    return len(kinds) == 1 and type(layers[0].weight) is nn.Parameter


@torch.no_grad()
def _joined(layers: list[nn.Linear]) -> list[JoinedLinear]:
    sizes = [each.out_features for each in layers]
    weight = torch.cat([each.weight for each in layers])
    bias = None if layers[0].bias is None else torch.cat([each.bias for each in layers])
    product = Product(weight, bias, sizes)
    return [JoinedLinear(product, place) for place in range(len(sizes))]
