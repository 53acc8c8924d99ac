"""Drafting by no method: random tokens at no cost, for ``verifier=synthetic``, which accepts by coin.

Together they measure the speed of decoding at an assumed acceptance, with drafts that cost nothing. With
``drafter=model`` they measure it with drafts at the cost of the draft model. The text has no meaning in either case.
"""

from __future__ import annotations

import torch
from jaxtyping import Int64
from torch import Tensor

from specbench.core.rng import Stream, Streams
from specbench.core.types import Draft
from specbench.drafters.drafter import Drafter
from specbench.models import CachedModel, Pair
from specbench.sampling.batch import Batch


class SyntheticDrafter(Drafter):
    """Draws tokens uniformly from the vocabulary without the stop tokens, as many as the limits allow."""

    synthetic = True

    def _attach(self, pair: Pair, target: CachedModel) -> None:
        ids = [token for token in range(pair.vocab_size) if token not in pair.stop_ids]
        self._ids = torch.tensor(ids, device=target.device)

    def propose(self, batch: Batch, limits: Int64[Tensor, " B"], streams: Streams) -> Draft:
        width = streams.width - 1
        tokens = self._ids[(streams.uniform(Stream.DRAFT)[:, :width] * len(self._ids)).long()]
        return Draft(tokens.flatten(), None, limits, width, padded=True)
