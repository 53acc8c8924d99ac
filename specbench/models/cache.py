"""A key-value cache with one row a request, in which every request has its own length.

transformers' caches hold one length for the whole batch, so requests that accept different numbers of tokens cannot
stand side by side in them. Here a forward pass writes each request's keys at that request's own positions; rolling
back a rejection is setting a length, since what lies beyond it is never attended to and is written over later.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin


class RaggedLayer(CacheLayerMixin):
    """Keys and values [B, kv_heads, capacity, head_dim] of one layer; zeros until written, so that no NaN is read."""

    is_sliding = False

    def __init__(self, cache: RaggedCache):
        super().__init__()
        self._cache = cache

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        batch, heads, _, _ = key_states.shape
        self.keys = key_states.new_zeros((batch, heads, self._cache.capacity, key_states.shape[-1]))
        self.values = value_states.new_zeros((batch, heads, self._cache.capacity, value_states.shape[-1]))
        self.is_initialized = True

    def update(
        self,
        key_states: Float[Tensor, "B heads n dim"],
        value_states: Float[Tensor, "B heads n dim"],
        *_: object,
        **__: object,
    ) -> tuple[Tensor, Tensor]:
        """Writes at ``cache.write_at`` [B, n] and returns the part that the coming attention may look at."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        assert self.keys is not None
        assert self.values is not None
        rows, columns = self._cache.rows, self._cache.write_at
        self.keys[rows, :, columns] = key_states.transpose(1, 2)
        self.values[rows, :, columns] = value_states.transpose(1, 2)
        return self.keys[:, :, : self._cache.visible], self.values[:, :, : self._cache.visible]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._cache.visible, 0

    def get_seq_length(self) -> int:
        return self._cache.visible

    def get_max_length(self) -> int:
        return self._cache.capacity


class RaggedCache(Cache):
    """All layers, and where the coming forward pass writes.

    Args:
        num_layers: attention layers of the model.
        capacity: positions a request can hold.
    """

    def __init__(self, num_layers: int, capacity: int):
        self.capacity = capacity
        self.visible = 0
        self.rows: Int64[Tensor, "B 1"] = torch.zeros((0, 1), dtype=torch.int64)
        self.write_at: Int64[Tensor, "B n"] = torch.zeros((0, 0), dtype=torch.int64)
        super().__init__(layers=[RaggedLayer(self) for _ in range(num_layers)])

    def prepare(self, write_at: Int64[Tensor, "B n"], visible: int) -> None:
        """Says where the next forward pass writes, and how many leading positions its attention may read."""
        self.write_at, self.visible = write_at, visible
        self.rows = torch.arange(len(write_at), device=write_at.device)[:, None]

    def move(self, source: Int64[Tensor, "B n"], goal: Int64[Tensor, "B n"]) -> None:
        """Copies what each request holds at some positions to others. Nothing is written before all was read."""
        rows = torch.arange(len(source), device=source.device)[:, None]
        for layer in self.layers:
            assert isinstance(layer, RaggedLayer)
            for held in (layer.keys, layer.values):
                if held is not None:
                    held[rows, :, goal] = held[rows, :, source]

    def select(self, rows: Int64[Tensor, " m"]) -> None:
        """Keeps (or repeats) the given requests, in that order."""
        for layer in self.layers:
            assert isinstance(layer, RaggedLayer)
            if layer.keys is not None and layer.values is not None:
                layer.keys, layer.values = layer.keys[rows], layer.values[rows]

    def joined(self, other: RaggedCache, own: int, others: int) -> RaggedCache:
        """A cache of these ``own`` requests and the other's, with the capacity of the larger.

        A cache into which nothing was fed, since prompts of one token leave nothing to feed, has no rows yet.
        """
        both = RaggedCache(len(self.layers), max(self.capacity, other.capacity))
        for joint, *each in zip(both.layers, self.layers, other.layers, strict=True):
            assert isinstance(joint, RaggedLayer)
            for name in ("keys", "values"):
                parts = [getattr(layer, name) for layer in each]
                made = next((part for part in parts if part is not None), None)
                if made is None:
                    continue
                parts = [
                    made.new_zeros((rows, made.shape[1], 0, made.shape[3])) if part is None else part
                    for part, rows in zip(parts, (own, others), strict=True)
                ]
                grown = [torch.nn.functional.pad(part, (0, 0, 0, both.capacity - part.shape[2])) for part in parts]
                setattr(joint, name, torch.cat(grown))
            joint.is_initialized = joint.keys is not None
        return both
