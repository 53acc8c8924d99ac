"""Passes of a Llama-like model over few tokens on a GPU: five kernels a layer, or six, all of ours.

A small model's kernels run for a microsecond or two each, so that a pass takes as long as it has kernels. Norms, gates
and sums are part of products here (kernels/product.py), and rotation and the writing of the cache part of attention
(kernels/attention.py). Nothing is compiled by PyTorch. Passes over more rows, trees and those that return hidden states
are left to code that torch.compile writes, and pieces of prompts of more rows to PyTorch.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from jaxtyping import Float, Int64
from torch import Tensor, nn

from specbench.extras.compiled import products
from specbench.kernels import launch_attention, launch_product
from specbench.kernels.launch_attention import Turning
from specbench.kernels.launch_product import Norm, Normed
from specbench.models.cache import RaggedCache
from specbench.models.cached_model import CachedModel
from specbench.models.llama_like import is_llama_like, rotary_tables


@dataclass(frozen=True)
class Matrix:
    """One matrix of a layer, with what its product needs."""

    weight: Float[Tensor, "outputs inputs"]
    bias: Float[Tensor, " outputs"] | None
    counters: Tensor

    def times(self, x: Float[Tensor, "B n inputs"] | Normed, *, gated: bool = False) -> Float[Tensor, "B n results"]:
        """Returns the product; see :func:`launch_product.linear`."""
        return launch_product.linear(x, self.weight, self.bias, self.counters, gated=gated)

    def added(self, x: Float[Tensor, "B n inputs"], to: Normed, norm: Norm) -> Normed:
        """Returns the sum of a hidden state and the product, for the norm behind it."""
        return launch_product.linear_to_norm(x, self.weight, self.bias, self.counters, residual=to.hidden, norm=norm)


@dataclass(frozen=True)
class Layer:
    """The matrices and norms of one layer."""

    queries_keys_values: Matrix
    attended: Matrix
    gates: Matrix
    down: Matrix
    inner_norm: Norm
    next_norm: Norm
    head_norms: tuple[Tensor | None, Tensor | None]


class FewRows:
    """Takes passes over few rows in place of a model.

    Args:
        cached: what it takes passes for.
        layers: the engine's own copy of its model, in which projections of one input are one product (joined.py).
    """

    def __init__(self, cached: CachedModel, layers: Any):
        self._config, self._model = cached.model.config, layers
        epsilon = self._config.rms_norm_eps
        norms = [*(layer.input_layernorm for layer in layers.model.layers), layers.model.norm]
        self._first_norm, *following = (Norm(norm.weight.detach(), epsilon) for norm in norms)
        self._layers = [_layer(*pair, epsilon) for pair in zip(layers.model.layers, following, strict=True)]
        self._output = _matrix(layers.lm_head)
        self._turning: dict[int, tuple[Tensor, Tensor]] = {}  # tables by their number of positions
        self._context = cached.context

    def takes(self, token_ids: Tensor, ancestors: Tensor | None, hidden_states: bool) -> bool:
        """Returns whether it takes a pass."""
        return ancestors is None and not hidden_states and token_ids.numel() <= launch_product.MOST_ROWS

    def extend(
        self, cache: RaggedCache, lengths: Int64[Tensor, " B"], token_ids: Int64[Tensor, "B n"], is_prompt: bool = False
    ) -> Float[Tensor, "B logits V"]:
        """Feeds tokens behind those that are cached. Returns the logits after each of them.

        If ``is_prompt``, the pass ends where the last layer is cached, and the logits are of no token: [B, 0, V].
        """
        attention, table = self._model.model.layers[0].self_attn, self._model.model.embed_tokens.weight
        state = launch_product.embed(token_ids.contiguous(), table.detach(), self._first_norm)
        cos, sin = self._tables(cache.capacity, state.hidden)
        placed = None if isinstance(cache.read_rows, slice) else cache.read_rows
        rows = slice(None) if placed is not None else cache.read_rows
        for layer, memory in zip(self._layers, cache.layers, strict=True):
            stored: Any = memory
            new = layer.queries_keys_values.times(state)
            if not stored.is_initialized:
                kv_heads = self._config.num_key_value_heads
                like = new.new_empty((0, kv_heads, 0, attention.head_dim))
                stored.lazy_initialization(like, like)
            keys, values = (states[rows, :, : cache.visible] for states in (stored.keys, stored.values))
            turning = Turning(cos, sin, *layer.head_norms, state.norm.epsilon)
            where = (lengths, turning, attention.scaling)
            attended = launch_attention.attend_new(new, keys, values, *where, cache_rows=placed)
            if is_prompt and layer is self._layers[-1]:
                return new.new_empty((len(token_ids), 0, self._config.vocab_size))
            state = layer.attended.added(attended, state, layer.inner_norm)
            state = layer.down.added(layer.gates.times(state, gated=True), state, layer.next_norm)
        return self._output.times(state)

    def __call__(self, cache: RaggedCache, lengths: Tensor, token_ids: Tensor, is_prompt: bool) -> SimpleNamespace:
        """As a model of transformers returns them."""
        return SimpleNamespace(logits=self.extend(cache, lengths, token_ids, is_prompt), hidden_states=None)

    def _tables(self, capacity: int, like: Tensor) -> tuple[Tensor, Tensor]:
        if capacity not in self._turning:
            self._turning[capacity] = rotary_tables(self._model, capacity, self._context, like)
        return self._turning[capacity]


def takes(cached: CachedModel) -> bool:
    """Returns whether there are kernels for a model; needed before its layers are replaced."""
    model: Any = cached.model
    return is_llama_like(cached) and all(
        launch_product.takes(layer.weight) for layer in model.modules() if isinstance(layer, nn.Linear)
    )


def _matrix(layer: Any) -> Matrix:
    """Returns the matrix of a layer, or of the product that joined layers share."""
    weight, bias = layer.weight.detach(), None if layer.bias is None else layer.bias.detach()
    counters = products.counters(weight)
    assert counters is not None, "takes() first"
    return Matrix(weight, bias, counters)


def _layer(layer: Any, next_norm: Norm, epsilon: float) -> Layer:
    attention, mlp = layer.self_attn, layer.mlp
    has_norms = hasattr(attention, "q_norm")
    head_norms = (attention.q_norm.weight.detach(), attention.k_norm.weight.detach()) if has_norms else (None, None)
    return Layer(
        _matrix(attention.q_proj.product),
        _matrix(attention.o_proj),
        _matrix(mlp.gate_proj.product),
        _matrix(mlp.down_proj),
        Norm(layer.post_attention_layernorm.weight.detach(), epsilon),
        next_norm,
        head_norms,
    )
