"""Which models are plain enough for passes of our own: cpu_model.py on a CPU, extras/compiled on a GPU."""

from typing import Any

import torch
from torch import Tensor, nn

from specbench.models.cached_model import CachedModel

FAMILIES = ("Llama", "Mistral", "Qwen2", "Qwen3")


def is_llama_like(cached: CachedModel) -> bool:
    """Returns whether a model is one of FAMILIES in one dtype, with plain layers, no hooks and no window."""
    model: Any = cached.model
    config, family = model.config, type(model).__name__.removesuffix("ForCausalLM")
    plain = (
        type(cached) is CachedModel
        and cached.compare_ranks is None
        and family in FAMILIES
        and config.hidden_act == "silu"
    )
    if not plain or any(type(p) is not nn.Parameter or p.dtype != model.dtype for p in model.parameters()):
        return False
    for module in model.modules():
        if module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module):
            return False
        if isinstance(module, nn.Linear) and type(module) is not nn.Linear:
            return False
    biased = any(".mlp." in name and name.endswith(".bias") for name, _ in model.named_parameters())
    return getattr(config, "sliding_window", None) is None and not biased


def rotary_tables(model: Any, positions: int, context: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the cosines and sines [positions, head size] by which a model turns queries and keys.

    Args:
        context: the longest sequence that the model can hold; positions beyond it have its last one's.
        like: has the device and dtype of the tables.
    """
    at = torch.arange(positions, device=like.device).clamp(max=context - 1)[None]
    cos, sin = (table[0].contiguous() for table in model.model.rotary_emb(like, at))
    return cos, sin
