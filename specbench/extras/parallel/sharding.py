"""A target in shards: transformers' own tensor parallelism, a rank (process) a shard.

Matrices are cut between ranks (Megatron-LM, arXiv:1909.08053): each rank has some of the heads and some of the inner
features, and the ranks add up what they computed, twice a layer. transformers knows for each architecture how to cut
it; here is what the rest of specbench has to know of that. All ranks end up with the same logits, bit for bit, since
each gets the same sums; :func:`compare_ranks` checks it at every step.
"""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Bool, Int64, Shaped
from torch import Tensor, nn
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, PreTrainedConfig, PreTrainedModel

from specbench.core.machine import ranks
from specbench.core.machine.devices import gpus_in_use
from specbench.core.machine.files import Origin
from specbench.models.attention import implementation
from specbench.models.random_weights import RandomModel
from specbench.models.weights import loading_report, local

PATIENCE = 60.0  # seconds after which a rank that waits for the others gives up
_KEYS = ("k_proj", "qkv_proj", "query_key_value")  # layers that make the keys of attention
COLUMNWISE, ROWWISE = "colwise", "rowwise"  # transformers' names for a matrix cut by its outputs, and by its inputs
_NUMBER = re.compile(r"\.\d+(?=\.|$)")  # of a layer, in the name of a module
_WITHOUT_PLAN = "Use a Llama, Qwen, Mistral or Gemma, or parallel=none."


def check_divisible(config: PreTrainedConfig, source: Origin) -> None:
    """Whether a model can be cut into as many shards as there are ranks; needs its config.json alone.

    Raises:
        ModelError: transformers has no plan for it, its heads do not divide, or it is quantised.
    """
    text, count = config.get_text_config(), ranks.size()
    plan: Mapping[str, str] = getattr(text, "base_model_tp_plan", None) or {}
    if not plan:
        problem = f"parallel=tensor, and transformers has no plan of how to shard {config.model_type!r}"
        raise source.model_error(problem, _WITHOUT_PLAN)
    if getattr(config, "quantization_config", None) is not None:
        raise source.model_error("it is quantised, which parallel=tensor cannot shard", "Use parallel=none.")
    if not any(name.endswith(_KEYS) and style == "colwise" for name, style in plan.items()):
        return  # every rank has all heads
    for name in ("num_attention_heads", "num_key_value_heads"):
        heads = getattr(text, name, None)
        if heads is not None and heads % count:
            fitting = [n for n in range(2, count) if heads % n == 0]
            remedy = f"Start {' or '.join(map(str, fitting))} processes" if fitting else "Choose another model"
            problem = f"parallel=tensor with {count} processes, and its {heads} {name} do not divide by {count}"
            raise source.model_error(problem, f"{remedy}, or use parallel=none.")


def join(device: torch.device) -> None:
    """Makes the ranks able to compute together: NCCL on GPUs, Gloo on CPUs. Once a process."""
    if dist.is_initialized():
        return
    nccl = device.type == "cuda"
    if not nccl and sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # ranks are on one machine, so only it is listened to
    dist.init_process_group(
        "nccl" if nccl else "gloo",
        store=dist.PrefixStore("group", ranks.store()),
        rank=ranks.rank(),
        world_size=ranks.size(),
        timeout=timedelta(seconds=PATIENCE),
        device_id=device if nccl else None,
    )


def loading() -> dict[str, Any]:
    """Returns further arguments of ``from_pretrained``, by which each rank reads its own shard."""
    from transformers.distributed import DistributedConfig

    return {"distributed_config": DistributedConfig(tp_size=ranks.size())}


def is_shard(tensor: Tensor) -> bool:
    """Whether this rank has a part of a tensor."""
    return any(not placement.is_replicate() for placement in getattr(tensor, "placements", ()))


def make_shard(model: RandomModel, dtype: torch.dtype) -> PreTrainedModel:
    """Returns this process's shard, in eval mode; no more is made, so that a model may be larger than a GPU.

    transformers makes it as it would that of a checkpoint whose files lack every weight. Its weights follow from
    ``model.source``, dtype and the number of the process alone.

    Raises:
        ConfigError: the device has no room.
    """
    source = model.source
    model_class: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(model.config)]
    with (
        source.library_errors("it cannot be made"),
        torch.random.fork_rng(gpus_in_use()),
        loading_report(),
        warnings.catch_warnings(),
    ):
        warnings.filterwarnings("ignore", message="DTensor random operators")
        shard = model_class.from_pretrained(
            None,
            config=model.config,
            state_dict={},
            dtype=dtype,
            attn_implementation=implementation(model.config),
            **loading(),
        )
        # It has the same numbers on every rank. Now each shard has its own, and what all ranks have whole is the same.
        for name, weight in shard.named_parameters():
            if weight.dim() > 1:
                part = local(weight.detach())
                seed = model.seed(name, ranks.rank() if is_shard(weight) else "all")
                generator = torch.Generator(part.device).manual_seed(seed)
                part.normal_(0, model.config.initializer_range, generator=generator)
    return shard.eval()


def in_place_of(tensor: Tensor, part: Tensor) -> Tensor:
    """A tensor that is cut as another one, of which this rank has ``part``; ``part`` itself if the other is whole."""
    cut: Any = tensor
    if not hasattr(cut, "to_local"):
        return part
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(
        part, cut.device_mesh, cut.placements, run_check=False, shape=cut.shape, stride=cut.stride()
    )


def cuts(model: nn.Module) -> dict[nn.Module, str]:
    """How the linear layers of a sharded model are cut, by transformers' names; empty for a whole model.

    Layers that are cut in another way than COLUMNWISE and ROWWISE gather their output or split their input first.
    """
    if not isinstance(model, PreTrainedModel) or (getattr(model, "_tp_size", None) or 1) == 1:
        return {}
    named = ((module, model.tp_plan.get(_NUMBER.sub(".*", name))) for name, module in model.named_modules())
    return {module: style for module, style in named if style is not None and type(module) is nn.Linear}


def compare_ranks(logits: Shaped[Tensor, "B width V"], *tokens: Int64[Tensor, "B _"]) -> Bool[Tensor, " B"]:
    """Returns the requests of which the ranks have other logits, by the sum of their bits, or other tokens.

    Nothing waits for it. Every rank gets the same answer, so that all stop at the same step, where one alone would
    leave the others waiting. It is one small collective operation, which a CUDA graph can hold.
    """
    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[logits.element_size()]
    sums = [logits.view(bits).sum(dim=(1, 2), dtype=torch.int64)]
    for block in tokens:
        place = torch.arange(1, block.shape[1] + 1, device=block.device)
        sums.append((block * place * 1_000_003).sum(dim=1))  # by place, so that an exchange shows
    checksums = torch.stack(sums)
    ends = torch.stack([checksums, -checksums])
    dist.all_reduce(ends, dist.ReduceOp.MAX)  # the largest, and minus the smallest
    return (ends[0] != -ends[1]).any(dim=0)
