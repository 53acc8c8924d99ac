"""A key-value cache with a row for each request, in which every request has its own length.

transformers' caches have one length for the whole batch, so they cannot hold requests that accept different numbers of
tokens. Here a forward pass writes each request's keys at that request's own positions. A rejection is rolled back by
setting a length: positions beyond it are never attended to, and are overwritten later. Memory stays where it is while
requests come and go, so that a captured CUDA graph can go on using it.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from specbench.core.errors import ArgumentError


class RaggedLayer(CacheLayerMixin):
    """Keys and values [rows, kv_heads, capacity, head_dim] of one layer; finite everywhere, so that no NaN is read."""

    is_sliding = False
    keys: Any  # a tensor, never None when it is read
    values: Any

    def __init__(self, cache: RaggedCache):
        super().__init__()
        self._cache = cache

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        rows, capacity = self._cache.rows, self._cache.capacity
        _, heads, _, _ = key_states.shape
        self.keys = key_states.new_zeros((rows, heads, capacity, key_states.shape[-1]))
        self.values = value_states.new_zeros((rows, heads, capacity, value_states.shape[-1]))
        self.is_initialized = True

    def update(
        self,
        key_states: Float[Tensor, "B heads n dim"],
        value_states: Float[Tensor, "B heads n dim"],
        *_: object,
        **__: object,
    ) -> tuple[Tensor, Tensor]:
        """Writes at the positions of ``cache.begin`` or ``cache.extend``; returns the keys and values to attend to."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        cache = self._cache
        if cache.source is not None:  # texts begin here, and attend to themselves alone
            self._begin(*(states[cache.source, :, : cache.capacity] for states in (key_states, value_states)))
            return key_states, value_states
        self._write(cache.at_rows, cache.write_at, key_states.transpose(1, 2), value_states.transpose(1, 2))
        return self._read(cache.read_rows, cache.visible)

    def _begin(self, *new: Float[Tensor, "m heads n dim"]) -> None:
        """Stores the keys and values of texts that begin in ``cache.at_rows``."""
        for stored, states in zip((self.keys, self.values), new, strict=True):
            stored[self._cache.at_rows, :, : states.shape[2]] = states
            stored[self._cache.at_rows, :, states.shape[2] :] = 0

    def _write(
        self,
        rows: Int64[Tensor, "B 1"],
        positions: Int64[Tensor, "B n"],
        keys: Float[Tensor, "B n heads dim"],
        values: Float[Tensor, "B n heads dim"],
    ) -> None:
        self.keys[rows, :, positions], self.values[rows, :, positions] = keys, values

    def _read(self, rows: slice | Int64[Tensor, " m"], visible: int) -> tuple[Tensor, Tensor]:
        """Returns the keys and values of the first ``visible`` positions of rows."""
        return self.keys[rows, :, :visible], self.values[rows, :, :visible]

    def shift(self, rows: Int64[Tensor, "B 1"], source: Int64[Tensor, "B n"], goal: Int64[Tensor, "B n"]) -> None:
        """Copies some positions of rows to others; all are read before any is written."""
        for states in (self.keys, self.values):
            states[rows, :, goal] = states[rows, :, source]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._cache.visible, 0

    def get_seq_length(self) -> int:
        return self._cache.visible

    def get_max_length(self) -> int:
        return self._cache.capacity


class PackedLayer(RaggedLayer):
    """Keys and values in the order in which C++ code reads them (kernels/cpu_attention.h), in blocks of ``columns``.

    Keys are [rows, kv_heads, blocks of tokens, head_dim, columns], and values [rows, kv_heads, blocks of dimensions,
    tokens, columns]; tokens and dimensions are filled up to whole blocks.

    Args:
        plain: the layer whose tokens are copied.
    """

    def __init__(self, cache: RaggedCache, plain: Any, columns: int):
        super().__init__(cache)
        self._columns, self._head_dim = columns, plain.keys.shape[-1]
        self.keys, self.values = self._packed(plain.keys, plain.values)
        self.is_initialized = True

    def plain(self) -> RaggedLayer:
        """Returns a layer with the same tokens that is not packed."""
        layer = RaggedLayer(self._cache)
        layer.keys, layer.values = self._read(slice(None), self._cache.capacity)
        layer.is_initialized = True
        return layer

    def shift(self, rows: Int64[Tensor, "B 1"], source: Int64[Tensor, "B n"], goal: Int64[Tensor, "B n"]) -> None:
        """See :class:`RaggedLayer`. No goal is behind its source, and both ascend, as on a path of a tree.

        Raises:
            ArgumentError: a position outside of the memory, or a goal behind its source.
        """
        wrong = torch.ops.specbench_cpu.shift(self.keys, self.values, source, goal)
        if wrong >= 0:
            places = f"from {int(source.flatten()[wrong])} to {int(goal.flatten()[wrong])}"
            raise ArgumentError(f"path: a cached token cannot move {places} of {self.values.shape[3]}")

    def _begin(self, *new: Float[Tensor, "m heads n dim"]) -> None:
        self.keys[self._cache.at_rows], self.values[self._cache.at_rows] = self._packed(*new)

    def _packed(
        self, keys: Float[Tensor, "m heads n dim"], values: Float[Tensor, "m heads n dim"]
    ) -> tuple[Tensor, Tensor]:
        """Returns the memory of texts that begin with these tokens."""
        more = self._cache.capacity + -self._cache.capacity % self._columns - keys.shape[2]
        keys = torch.nn.functional.pad(keys, (0, 0, 0, more)).unflatten(2, (-1, self._columns))
        values = torch.nn.functional.pad(values, (0, -self._head_dim % self._columns, 0, more))
        return keys.transpose(3, 4).contiguous(), values.unflatten(3, (-1, self._columns)).transpose(2, 3).contiguous()

    def _write(
        self,
        rows: Int64[Tensor, "B 1"],
        positions: Int64[Tensor, "B n"],
        keys: Float[Tensor, "B n heads dim"],
        values: Float[Tensor, "B n heads dim"],
    ) -> None:
        self.keys[rows, :, positions // self._columns, :, positions % self._columns] = keys
        padded = torch.nn.functional.pad(values, (0, -self._head_dim % self._columns))
        self.values[rows, :, :, positions] = padded.unflatten(3, (-1, self._columns))

    def _read(self, rows: slice | Int64[Tensor, " m"], visible: int) -> tuple[Tensor, Tensor]:
        """See :class:`RaggedLayer`; a pass of PyTorch's, such as one over a long prompt, reads a copy."""
        keys = self.keys[rows].transpose(3, 4).flatten(2, 3)
        values = self.values[rows].transpose(2, 3).flatten(3)
        return keys[:, :, :visible], values[:, :, :visible, : self._head_dim]


class RaggedCache(Cache):
    """All layers, and the positions that the next forward pass writes.

    Attributes:
        rows, capacity: allocated requests, and positions of each.
        visible: the number of leading positions that the next attention reads.
        at_rows, write_at: the rows and positions that its keys are written to.
        read_rows: the rows that its attention reads, if texts are extended.
        source: the fed row of each of ``at_rows``, if texts begin; None if they are extended.
    """

    def __init__(self, num_layers: int, device: torch.device | str = "cpu"):
        self.rows = self.capacity = self.visible = 0
        self._all_rows = torch.zeros(0, dtype=torch.int64, device=device)
        self.at_rows: Int64[Tensor, " ..."] = torch.zeros((0, 1), dtype=torch.int64)
        self.write_at: Int64[Tensor, "B n"] = torch.zeros((0, 0), dtype=torch.int64)
        self.read_rows: slice | Int64[Tensor, " m"] = slice(0)
        self.source: Int64[Tensor, " m"] | None = None
        self._memory: dict[int, list[Tensor]] = {}  # by row; a view keeps all memory of its layer
        super().__init__(layers=[RaggedLayer(self) for _ in range(num_layers)])

    def begin(self, rows: Int64[Tensor, " m"], source: Int64[Tensor, " m"], width: int) -> None:
        """Prepares a pass over whole prompts of ``width`` tokens; row ``rows[i]`` stores fed row ``source[i]``."""
        self.at_rows, self.source, self.visible = rows, source, width

    def extend(self, write_at: Int64[Tensor, "B n"], visible: int, rows: Int64[Tensor, " B"] | None = None) -> None:
        """Prepares a pass that extends these rows.

        Args:
            write_at: positions of the new tokens.
            visible: leading positions that attention reads.
            rows: None for the leading ones, which are read in place; others are copied to be read.
        """
        self.write_at, self.source, self.visible = write_at, None, visible
        self.read_rows = slice(len(write_at)) if rows is None else rows
        self.at_rows = (self._all_rows[: len(write_at)] if rows is None else rows)[:, None]

    def grow(self, rows: int, capacity: int) -> None:
        """Allocates memory for numbers of requests and positions; cached tokens stay."""
        self._memory.clear()
        more = (0, 0, 0, capacity - self.capacity, 0, 0, 0, rows - self.rows)
        self.layers = [layer.plain() if isinstance(layer, PackedLayer) else layer for layer in self.layers]
        self.rows, self.capacity = rows, capacity
        self._all_rows = torch.arange(rows, device=self._all_rows.device)
        for layer in self._written():
            layer.keys, layer.values = (torch.nn.functional.pad(states, more) for states in (layer.keys, layer.values))

    def packed(self, like: Tensor, columns: int) -> list[tuple[Tensor, Tensor]]:
        """Packs what is not packed yet, and returns the keys and values of each layer (:class:`PackedLayer`).

        A layer without any gets those of heads such as ``like`` has. Memory that grows is not packed any more.
        """
        self._memory.clear()
        layers: list[Any] = self.layers
        for i, layer in enumerate(layers):
            if not layer.is_initialized:
                layer.lazy_initialization(like, like)
            layers[i] = layer if isinstance(layer, PackedLayer) else PackedLayer(self, layer, columns)
        return [(layer.keys, layer.values) for layer in layers]

    def clear(self, rows: Int64[Tensor, " m"]) -> None:
        """Sets rows to zero: a NaN left there would reach even attention that gives it no weight."""
        for layer in self._written():
            layer.keys[rows] = 0
            layer.values[rows] = 0

    def clear_row(self, row: int) -> None:
        """Sets one row to zero, in few kernels."""
        if len(self._memory.get(row, ())) < 2 * len(self.layers):  # layers get memory as they are first used
            self._memory[row] = [states[row] for layer in self._written() for states in (layer.keys, layer.values)]
        torch._foreach_zero_(self._memory[row])

    def move(self, sources: Int64[Tensor, " m"], targets: Int64[Tensor, " m"]) -> None:
        """Copies the requests of some rows to others."""
        for layer in self._written():
            layer.keys[targets] = layer.keys[sources]
            layer.values[targets] = layer.values[sources]

    def shift(self, source: Int64[Tensor, "B n"], goal: Int64[Tensor, "B n"]) -> None:
        """Copies some positions of each leading row to others; all are read before any is written."""
        rows = self._all_rows[: len(source), None]
        for layer in self._written():
            layer.shift(rows, source, goal)

    def _written(self) -> list[Any]:
        """Returns the layers that have cached tokens."""
        return [layer for layer in self.layers if isinstance(layer, RaggedLayer) and layer.is_initialized]
