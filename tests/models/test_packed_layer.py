"""Keys and values in the order of C++ code: moving tokens there is moving them in plain layers."""

import copy

import pytest
import torch

from specbench.core.errors import ArgumentError
from specbench.kernels import cpu_product
from specbench.models.cache import PackedLayer, RaggedCache


def test_tokens_move_in_packed_layers_as_in_plain_ones():
    """Trees move theirs, in a cache that plain decoding has packed. Blocks of 8 columns are not full here."""
    cpu_product.load()
    torch.manual_seed(0)
    cache = RaggedCache(2)
    cache.grow(3, 13)
    for layer in cache.layers:
        layer.lazy_initialization(torch.empty(1, 2, 1, 5), torch.empty(1, 2, 1, 5))
        layer.keys, layer.values = torch.randn(3, 2, 13, 5), torch.randn(3, 2, 13, 5)
    plain = copy.deepcopy(cache)
    cache.packed(torch.empty(1, 2, 1, 5), 8)
    assert all(isinstance(layer, PackedLayer) for layer in cache.layers)
    source, goal = torch.tensor([[4, 5, 12], [1, 8, 9]]), torch.tensor([[3, 4, 5], [1, 2, 3]])
    for one in (cache, plain):
        one.shift(source, goal)
    for layer, expected in zip(cache.layers, plain.layers, strict=True):
        assert torch.equal(layer.plain().keys, expected.keys)
        assert torch.equal(layer.plain().values, expected.values)
    for source, goal in (([16], [0]), ([3], [4]), ([-1], [-1])):
        with pytest.raises(ArgumentError, match=f"from {source[0]} to {goal[0]} of 16"):
            cache.shift(torch.tensor([source]), torch.tensor([goal]))
