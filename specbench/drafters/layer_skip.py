"""Drafting with the target's own first layers: self-speculation, without a second model.

Elhoushi et al., "LayerSkip", arXiv 2404.16710; Zhang et al., "Draft & Verify", arXiv 2309.08168. A target that was
trained for it (LayerSkip's loss at early exits) drafts well from few layers; an ordinary one needs most of them.
"""

from __future__ import annotations

from typing import Any

from jaxtyping import Int64
from torch import Tensor

from specbench.core.checks import is_number, is_whole, plain_number
from specbench.core.errors import ConfigError
from specbench.core.rng import Streams
from specbench.core.types import Draft
from specbench.drafters.model import ModelDrafter
from specbench.models import CachedModel, Pair
from specbench.models.early_exit import KEY, EarlyExit, check_layers, layers_of
from specbench.sampling.batch import Batch


class LayerSkipDrafter(ModelDrafter):
    """Samples from the target's first layers, its final norm and its head.

    Args:
        layers: the number of the target's layers that draft, fewer than it has; or a share of them, inside (0, 1).
        temperature, policy, threshold: see :class:`ModelDrafter`.

    Raises:
        ConfigError: anything but a count or a share of layers, and what ModelDrafter raises.
    """

    needs_draft_model = False
    most_pending = 1  # the target's cache, which is shared, holds all of a text but its last token

    def __init__(self, layers: object, temperature: object = None, policy: object = "fixed", threshold: object = None):
        super().__init__(temperature, policy, threshold)
        layers = plain_number(layers)
        is_share = isinstance(layers, float) and 0 < layers < 1
        if not is_number(layers) or not (is_share or (is_whole(layers) and layers >= 1)):
            remedy = "Use a whole number from 1, or a share of the target's layers, such as 0.25."
            raise ConfigError(KEY, layers, "neither a count nor a share of layers", remedy)
        self.layers = layers
        self.source = f"{layers:g}{' of the' if is_share else ''} layers of {{target}}"

    def _attach(self, pair: Pair, target: CachedModel) -> None:
        self._exit = self.model = EarlyExit(target, layers_of(self.layers, target.model.config))

    def check(self, has_draft: bool | None = None, target_config: Any = None) -> None:
        super().check(has_draft, target_config)
        if target_config is not None:
            check_layers(layers_of(self.layers, target_config), target_config)

    def propose(self, batch: Batch, limits: Int64[Tensor, " B"], streams: Streams) -> Draft:
        self._exit.follow()
        return super().propose(batch, limits, streams)
