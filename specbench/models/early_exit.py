"""A target that is left early: its first layers, its final norm and its head are a draft model, without new weights.

LayerSkip (Elhoushi et al., arXiv 2404.16710) exits behind layer E; Draft & Verify (Zhang et al., arXiv 2309.08168)
skips layers anywhere. The exit needs no second cache: the first layers of the target compute the same keys and values
in either model. So the draft reads the target's cache and writes to it, and finds there all of the text but
its last token. What it writes of drafted tokens, the target's pass writes again: the same numbers, but for the rounding
of another shape. The layers behind the exit have never seen these tokens.
"""

import copy
from collections.abc import Sequence
from typing import Any

from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from specbench.core.errors import ConfigError, ModelError
from specbench.models.cache import RaggedCache
from specbench.models.cached_model import CachedModel
from specbench.models.forward import Feature, Features

KEY = "drafter.layers"


def layers_of(layers: int | float, config: PreTrainedConfig) -> int:
    """How many layers a setting means: a number of layers, or a share of the target's, inside (0, 1)."""
    if isinstance(layers, int):
        return layers
    count = int(config.get_text_config().num_hidden_layers)
    return max(1, min(round(layers * count), count - 1))


def check_layers(layers: int, config: PreTrainedConfig) -> int:
    """How many layers a target has, by its configuration. Raises ConfigError unless the draft runs fewer."""
    count = int(config.get_text_config().num_hidden_layers)
    if not 1 <= layers < count:
        problem = f"the target has {count} layers, of which a draft runs some"
        remedy = f"Use 1 to {count - 1}." if count > 1 else "Choose another target, or drafter=prompt_lookup."
        raise ConfigError(KEY, layers, problem, remedy)
    return count


def first_layers(model: PreTrainedModel, layers: int) -> PreTrainedModel:
    """The model without its layers from number ``layers`` on (from 0). It shares all weights with the whole one.

    Raises:
        ConfigError: see :func:`check_layers`.
        ModelError: an architecture whose layers are not one list.
    """
    path = _path_of_layers(model, check_layers(layers, model.config))
    # Modules on the way to the list are copied, so that the whole model keeps its own; all others are shared.
    shortened = parent = _with_own_children(model)
    for name in path[:-1]:
        parent._modules[name] = parent = _with_own_children(parent._modules[name])
    parent._modules[path[-1]] = nn.ModuleList(list(parent._modules[path[-1]])[:layers])
    return shortened


def _path_of_layers(model: PreTrainedModel, count: int) -> list[str]:
    """The names that lead to the list of a model's layers."""
    lists = [
        name for name, module in model.named_modules() if isinstance(module, nn.ModuleList) and len(module) == count
    ]
    outer = [name for name in lists if not any(name.startswith(f"{other}.") for other in lists)]
    if len(outer) != 1:
        raise ModelError(
            f"drafter=layer_skip: {type(model).__name__} has {len(outer)} lists of {count} modules, so that its layers "
            "cannot be told. Use drafter=model or drafter=prompt_lookup."
        )
    return outer[0].split(".")


def _with_own_children(module: Any) -> Any:
    copied = copy.copy(module)
    copied._modules = dict(module._modules)
    return copied


class EarlyExit(CachedModel):
    """The first layers of a target, over the target's cache.

    Args:
        target: owns the cache and follows the batch; nothing is cached here.
        layers: the number of its layers that run.

    Raises:
        ConfigError, ModelError: see :func:`first_layers`.
    """

    def __init__(self, target: CachedModel, layers: int):
        super().__init__(first_layers(target.model, layers), target.vocab_size, "draft")
        self._target = target

    def follow(self) -> None:
        """Takes the target's cache and a copy of its lengths, so that :meth:`extend` does not change the target's."""
        target = self._target
        self._cache, self._fixed, self._longest = target._cache, target._fixed, target._longest
        self.lengths = target.lengths.clone()

    def start(self, prompts: Sequence[Sequence[int]], capacity: int, features: Sequence[Feature] = ()) -> Features:
        """See :class:`CachedModel`; with a cache of its own, for texts that are scored outside of decoding."""
        self._cache = RaggedCache(self._num_layers, self.device)
        return super().start(prompts, capacity, features)
