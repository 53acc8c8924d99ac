"""Drafting that stands for no method: random tokens at no cost, for ``verifier=synthetic``, which accepts by coin.

Together they tell how fast decoding would be at an acceptance that is given, with drafts that cost nothing. With the
pair's draft model in this drafter's place, they tell the same of drafts at its cost. Either way the text is nobody's.
"""

from __future__ import annotations

import torch
from jaxtyping import Int64
from torch import Tensor

from specbench.core.rng import Stream, Streams
from specbench.core.types import Draft
from specbench.drafters.base import Drafter
from specbench.models import Engine, Pair
from specbench.sampling.batch import Batch


class SyntheticDrafter(Drafter):
    """Draws tokens uniformly from the vocabulary without the stop tokens, as many as there may be."""

    synthetic = True

    def _attach(self, pair: Pair, target: Engine) -> None:
        ids = [token for token in range(pair.vocab_size) if token not in pair.stop_ids]
        self._ids = torch.tensor(ids, device=target.device)

    def propose(self, batch: Batch, limits: Int64[Tensor, " B"], streams: Streams) -> Draft:
        """See :class:`specbench.drafters.Drafter`."""
        width = streams.width - 1
        tokens = self._ids[(streams.uniform(Stream.DRAFT)[:, :width] * len(self._ids)).long()]
        return Draft(tokens.flatten(), None, limits, width, padded=True)
