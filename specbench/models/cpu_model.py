"""Passes of a Llama-like model over few tokens on a CPU, each one call of C++ (kernels/cpu_model.cpp).

A pass of a small model through PyTorch is hundreds of operations, which take as long as reading the weights does.
"""

from __future__ import annotations

import ctypes
import math
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor, nn
from transformers import PreTrainedModel

from specbench.core.draft_lengths import LengthPolicy
from specbench.core.trees import check_nodes
from specbench.kernels import cpu_product
from specbench.models.cached_model import CachedModel
from specbench.models.llama_like import is_llama_like, rotary_tables


class _Model(ctypes.Structure):
    """As in kernels/cpu_model.cpp."""

    _sizes = (
        *("num_layers", "hidden", "heads", "kv_heads", "head_dim"),
        *("inner", "vocabulary", "embedded", "capacity", "weight_bytes"),
    )
    _pointers = ("layers", "embeddings", "norm", "unembeddings", "cos", "sin")
    _fields_ = (
        *((name, ctypes.c_int64) for name in _sizes),
        ("epsilon", ctypes.c_double),
        ("scale", ctypes.c_double),
        *((name, ctypes.c_void_p) for name in _pointers),
    )


@dataclass(frozen=True)
class _Weights:
    """The weights of a model in the order in which a pass reads them: a copy of its matrices.

    Attributes:
        version: changes with the model's parameters.
        layers: the tensors of each layer, as in kernels/cpu_model.cpp; None for a bias or norm that it lacks.
        outer: embeddings, the last norm and the output layer.
        dtype: of the packed matrices, the smallest that holds all of their numbers exactly.
    """

    version: tuple[object, ...]
    layers: list[list[Tensor | None]]
    outer: list[Tensor]
    dtype: torch.dtype


_weights: weakref.WeakKeyDictionary[PreTrainedModel, _Weights] = weakref.WeakKeyDictionary()


def takes(cached: CachedModel) -> bool:
    """Returns whether there is C++ code for a model: a plain one (llama_like.py) in float32."""
    return cached.dtype == cached.model.dtype == torch.float32 and is_llama_like(cached)


class CpuModel:
    """Takes passes for a cached model whose memory stays where it is.

    Args:
        cached: a model that :func:`takes` takes; its cache is read and written. :func:`cpu_product.load` first.
    """

    def __init__(self, cached: CachedModel):
        self._cached, self._layout = cached, -1
        self._weights = _weights_of(cached)
        self._library = cpu_product.load()

    def extend(
        self, token_ids: Int64[Tensor, "B n"], ancestors: Bool[Tensor, "B n k"] | None = None
    ) -> Float[Tensor, "B n V"]:
        """Feeds tokens behind those that are cached and returns the logits after each; lengths stay as they are.

        Raises:
            ArgumentError: a tree of more than 64 tokens.
        """
        tokens, lengths, model = token_ids.contiguous(), self._cached.lengths, self._model()
        logits = torch.empty((*tokens.shape, self._cached.vocab_size))
        seen = None if ancestors is None else ancestors.contiguous()
        tree = (0, 0) if seen is None else (seen.data_ptr(), check_nodes(seen.shape[2]))
        arguments = (*_pointers(tokens, lengths), *tokens.shape, *tree, *_pointers(logits))
        _check(self._library.specbench_extend(ctypes.byref(model), *arguments))
        return logits

    def feed(self, pieces: Sequence[Sequence[int]], rows: Sequence[int], first: Sequence[int]) -> None:
        """Feeds pieces of prompts; arguments as of :meth:`CachedModel.feed`. Lengths stay as they are."""
        for piece, row, begin in zip(pieces, rows, first, strict=True):
            tokens = torch.tensor(list(piece), dtype=torch.int64)
            arguments = (tokens.data_ptr(), len(piece), row, begin)
            _check(self._library.specbench_feed(ctypes.byref(self._model()), *arguments))

    def draft(
        self,
        texts: Int64[Tensor, "B capacity"],
        text_lengths: Int64[Tensor, " B"],
        counts: Int64[Tensor, " B"],
        temperature: Float64[Tensor, " B"],
        uniforms: Float64[Tensor, "B width"],
        policy: LengthPolicy,
    ) -> tuple[Int64[Tensor, " B"], Int64[Tensor, "B n"], Float[Tensor, "B n V"], Float64[Tensor, "B n"]]:
        """Feeds what is not cached of each text, and drafts ``width - 1`` tokens at most behind it, one after another.

        Args:
            counts: tokens to draft, at most.
            uniforms: one for each token that is drawn.

        Returns:
            The numbers of drafted tokens, the tokens, the logits that they were drawn from and the normalisers of
            these. Beyond a request's number they are meaningless. Without a policy n is ``width - 1``.
        """
        batch, width, counts = len(counts), uniforms.shape[1] - 1, counts.clone()
        tokens, normalizers = counts.new_zeros((batch, width)), uniforms.new_zeros((batch, width))
        logits = torch.zeros((batch, width, self._cached.vocab_size))
        arguments = (
            texts.data_ptr(),
            texts.stride(0),
            *_pointers(text_lengths, self._cached.lengths, counts),
            batch,
            width,
            *_pointers(temperature, uniforms),
            uniforms.stride(0),
            policy.threshold if policy.kind == "probability" else 0.0,
            policy.threshold if policy.kind == "entropy" else math.inf,
            *_pointers(tokens, logits, normalizers),
        )
        _check(self._library.specbench_draft(ctypes.byref(self._model()), *arguments))
        n = width if policy.kind == "fixed" else int(counts.max())
        return counts, tokens[:, :n].contiguous(), logits[:, :n].contiguous(), normalizers[:, :n].contiguous()

    def _model(self) -> _Model:
        """Returns the model with the addresses of its cache, which change when the cache grows."""
        cached = self._cached
        if self._layout != cached.layout:
            self._structure, self._held = _structure(cached, self._weights)
            self._layout = cached.layout
        return self._structure


def _check(valid: bool) -> None:
    if not valid:
        raise IndexError("a token outside of the model's vocabulary, or a text longer than its cache")


def _structure(cached: CachedModel, weights: _Weights) -> tuple[_Model, list[Any]]:
    """Returns the model and what has to outlive it."""
    model: Any = cached.model
    attention, capacity = model.model.layers[0].self_attn, cached.capacity
    heads, kv_heads = (layer.out_features // attention.head_dim for layer in (attention.q_proj, attention.k_proj))
    rotation = rotary_tables(model, capacity, cached.context, weights.outer[0])
    memory = cached.packed_memory(kv_heads, attention.head_dim, cpu_product.load().specbench_columns())
    addresses = [
        0 if tensor is None else tensor.data_ptr()
        for tensors, its in zip(weights.layers, memory, strict=True)
        for tensor in (*tensors, *its)
    ]
    layers = (ctypes.c_void_p * len(addresses))(*addresses)
    sizes = (
        *(len(weights.layers), model.config.hidden_size, heads, kv_heads, attention.head_dim),
        *(model.config.intermediate_size, cached.vocab_size, len(weights.outer[0]), capacity, weights.dtype.itemsize),
    )
    pointers = (ctypes.addressof(layers), *_pointers(*weights.outer, *rotation))
    return _Model(*sizes, model.config.rms_norm_eps, attention.scaling, *pointers), [layers, rotation, memory]


def _weights_of(cached: CachedModel) -> _Weights:
    """Returns the weights of a model, packed anew if they have changed since."""
    model: Any = cached.model
    version = (cached.vocab_size, *((p.data_ptr(), p._version) for p in model.parameters()))
    if model not in _weights or _weights[model].version != version:
        matrices = [layer.weight for layer in model.modules() if isinstance(layer, nn.Linear)]
        dtype = max((cpu_product.narrowest(matrix) for matrix in matrices), key=lambda dtype: dtype.itemsize)
        layers = [_tensors(layer, dtype) for layer in model.model.layers]
        unembeddings = cpu_product.pack(model.lm_head.weight[: cached.vocab_size], dtype)
        outer = [model.model.embed_tokens.weight.detach(), model.model.norm.weight.detach(), unembeddings]
        _weights[model] = _Weights(version, layers, outer, dtype)
    return _weights[model]


@torch.no_grad()
def _tensors(layer: Any, dtype: torch.dtype) -> list[Tensor | None]:
    attention, mlp = layer.self_attn, layer.mlp
    projections = (attention.q_proj, attention.k_proj, attention.v_proj)
    norms = [getattr(attention, name, None) for name in ("q_norm", "k_norm")]
    return [
        layer.input_layernorm.weight.detach(),
        cpu_product.pack(torch.cat([projection.weight for projection in projections]), dtype),
        None if projections[0].bias is None else torch.cat([projection.bias for projection in projections]),
        *(None if norm is None else norm.weight.detach() for norm in norms),
        cpu_product.pack(attention.o_proj.weight, dtype),
        None if attention.o_proj.bias is None else attention.o_proj.bias.detach(),
        layer.post_attention_layernorm.weight.detach(),
        cpu_product.pack(torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]), dtype),
        cpu_product.pack(mlp.down_proj.weight, dtype),
    ]


def _pointers(*tensors: Tensor) -> list[int]:
    return [tensor.data_ptr() for tensor in tensors]
