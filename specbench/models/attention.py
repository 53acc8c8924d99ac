"""The attention that every model of transformers runs here, registered so that models stay as they are.

A cached model passes no mask but a small tensor of integers that says where the new tokens of each request stand
(:func:`specbench.models.plain_attention.places`). transformers hands a four-dimensional mask through to every layer, so
it arrives whatever the family. Calls with any other mask (training, scoring without a cache, transformers' own
generate) go to PyTorch's attention, as they would without us.
"""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AttentionInterface,
    AttentionMaskInterface,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from specbench.core.errors import ArgumentError
from specbench.models import plain_attention

NAME = "specbench"  # as a model's configuration has it


def takes_places(model: type[PreTrainedModel] | PreTrainedModel) -> bool:
    """Returns whether a model looks its attention up by name, so that ours can be registered."""
    return bool(getattr(model, "_supports_attention_backend", False))


def implementation(config: PreTrainedConfig) -> str:
    """The name of the attention that a configuration's model is to be made with."""
    model: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    return NAME if takes_places(model) else "sdpa"


def install(model: PreTrainedModel) -> bool:
    """Makes a model run this module's attention; returns False for a model that cannot, which takes boolean masks."""
    if not takes_places(model):
        return False
    model.set_attn_implementation(NAME)
    return True


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """What layers call, by transformers' names and shapes; query, key and value are [B, heads, n or visible, dim].

    Raises:
        ArgumentError: biases in place of positions; a layer that attends to both sides.
    """
    if attention_mask is None or attention_mask.dtype != torch.int64:
        if softcap is None and s_aux is None:
            others |= {"dropout": dropout, "scaling": scaling, "position_bias": position_bias}
            return sdpa_attention_forward(module, query, key, value, attention_mask, **others)
        return _without_places(query, key, value, attention_mask, scaling, softcap, s_aux), None
    if position_bias is not None:
        raise ArgumentError(f"position_bias: {type(module).__name__} adds biases, which attention here does not take")
    if not getattr(module, "is_causal", True):
        raise ArgumentError(f"is_causal=False: {type(module).__name__} attends to both sides, as layers of encoders do")
    scale = query.shape[3] ** -0.5 if scaling is None else scaling
    window, n, visible = sliding_window or None, query.shape[2], key.shape[2]
    is_chain, is_plain = attention_mask.shape[3] == 2, softcap is None and s_aux is None
    all_new = visible == n > 1 and (window is None or n <= window)  # nothing was cached before: no mask is needed
    if all_new and is_chain and is_plain and not (query.is_cuda and query.dtype == torch.float32):
        # PyTorch's fastest way; in float32 on a GPU it would be its slowest, which holds all products at once.
        out = scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale, enable_gqa=True)
        return out.transpose(1, 2).contiguous(), None
    return plain_attention.chosen(query, value)(
        query, key, value, attention_mask, scale=scale, window=window, softcap=softcap, sinks=s_aux
    ), None


def _without_places(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scaling: float | None,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """What PyTorch's attention has no arguments for. No mask means what it does in transformers: causal attention."""
    n, scale = query.shape[2], query.shape[3] ** -0.5 if scaling is None else scaling
    if mask is None:
        visible = n if n > 1 else key.shape[2]
        key, value = key[:, :, :visible], value[:, :, :visible]
        mask = torch.ones((1, 1, n, visible), dtype=torch.bool, device=query.device).tril(visible - n)
    return plain_attention.masked(query, key, value, mask, scale=scale, softcap=softcap, sinks=sinks)


@contextmanager
def windows_of_layers() -> Generator[set[int | None]]:
    """Collects the windows that layers ask for while the block runs."""
    windows: set[int | None] = set()

    def watched(*args: Any, sliding_window: int | None = None, **others: Any) -> tuple[Tensor, None]:
        windows.add(sliding_window or None)
        return attention(*args, sliding_window=sliding_window, **others)

    AttentionInterface.register(NAME, watched)
    try:
        yield windows
    finally:
        AttentionInterface.register(NAME, attention)


AttentionInterface.register(NAME, attention)
AttentionMaskInterface.register(NAME, sdpa_mask)
