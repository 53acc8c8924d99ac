"""Drafting with the target's own first layers: self-speculation, without a second model.

Elhoushi et al., "LayerSkip", arXiv 2404.16710; Zhang et al., "Draft & Verify", arXiv 2309.08168. A target that was
trained for it (LayerSkip's loss at early exits) drafts well from few layers; an ordinary one needs most of them.
"""

from __future__ import annotations

from typing import Any

from jaxtyping import Int64
from torch import Tensor

from specbench.core.checks import check_count
from specbench.core.rng import Streams
from specbench.core.types import Draft
from specbench.drafters.model import ModelDrafter
from specbench.models import Engine, Pair
from specbench.models.early_exit import KEY, EarlyExit, check_layers
from specbench.sampling.batch import Batch


class LayerSkipDrafter(ModelDrafter):
    """Samples from the target's first layers, its final norm and its head.

    Args:
        layers: how many of the target's layers draft; fewer than it has.
        temperature, policy, threshold: see :class:`ModelDrafter`.

    Raises:
        ConfigError: anything but a count of layers, and what ModelDrafter raises.
    """

    needs_draft_model = False
    most_pending = 1  # the target has fed all of a text but its last token, and what it fed is cached here

    def __init__(self, layers: object, temperature: object = None, policy: object = "fixed", threshold: object = None):
        super().__init__(temperature, policy, threshold)
        self.layers = check_count(KEY, layers)

    def _attach(self, pair: Pair, target: Engine) -> None:
        self._exit = self.engine = EarlyExit(target, self.layers)

    def check_target(self, config: Any) -> None:
        """See :class:`specbench.drafters.Drafter`."""
        check_layers(self.layers, config)

    def draft_name(self, target: str, draft: str) -> str:
        """See :class:`specbench.drafters.Drafter`."""
        return super().draft_name(target, f"{self.layers} layers of {target}")

    def propose(self, batch: Batch, limits: Int64[Tensor, " B"], streams: Streams) -> Draft:
        """See :class:`specbench.drafters.Drafter`."""
        self._exit.follow()
        return super().propose(batch, limits, streams)
