"""A shard of a model with random weights (models/random_weights.py)."""

import warnings
from typing import Any

import torch
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, PreTrainedModel

from specbench.core.machine import ranks
from specbench.core.machine.devices import gpus_in_use
from specbench.extras.parallel import sharding
from specbench.models.attention import implementation
from specbench.models.random_weights import RandomModel
from specbench.models.weights import loading_report, local


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
            **sharding.loading(),
        )
        # It has the same numbers on every rank. Now each shard has its own, and what all ranks have whole is the same.
        for name, weight in shard.named_parameters():
            if weight.dim() > 1:
                part = local(weight.detach())
                seed = model.seed(name, ranks.rank() if sharding.is_shard(weight) else "all")
                generator = torch.Generator(part.device).manual_seed(seed)
                part.normal_(0, model.config.initializer_range, generator=generator)
    return shard.eval()
