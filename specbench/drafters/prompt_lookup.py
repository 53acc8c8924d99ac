"""Drafting without a model: what followed the last time the text's ending occurred.

Saxena, "Prompt lookup decoding" (2023); the n-gram drafter of serving engines. The draft is deterministic, so q is
one-hot and a drafted token is accepted with probability p(token).
"""

from __future__ import annotations

import torch
from jaxtyping import Int64
from torch import Tensor

from specbench.batch import Batch
from specbench.drafters.base import Drafter
from specbench.errors import ConfigError
from specbench.rng import Streams
from specbench.types import Draft


def lookup(
    tokens: Int64[Tensor, "B capacity"], lengths: Int64[Tensor, " B"], longest: int, shortest: int
) -> Int64[Tensor, " B"]:
    """Where what followed the most recent earlier occurrence of each text's longest matching ending begins.

    Endings of ``longest`` tokens are tried first, then shorter ones down to ``shortest``. A text none of whose endings
    occurred before yields its length: nothing follows.
    """
    capacity = tokens.shape[1]
    places = torch.arange(capacity, device=tokens.device)
    found = lengths.clone()
    for size in range(longest, shortest - 1, -1):
        # match[b, i]: the ``size`` tokens before place i are the text's ending; i itself is inside the text.
        match = (places >= size) & (places < lengths[:, None])
        for back in range(1, size + 1):
            ending = tokens.gather(1, (lengths - back).clamp(min=0)[:, None])
            match[:, back:] &= tokens[:, : capacity - back] == ending
        latest = torch.where(match, places, -1).amax(dim=1)
        found = torch.where((found == lengths) & (latest >= 0), latest, found)
    return found


class PromptLookupDrafter(Drafter):
    """Proposes nothing where no ending of at least ``shortest`` tokens occurred before.

    Args:
        longest, shortest: sizes of the n-grams tried, longest first.
    """

    def __init__(self, longest: int = 3, shortest: int = 1):
        if not 1 <= shortest <= longest:
            raise ConfigError("drafter.shortest", shortest, f"not in 1..longest={longest}", "Use shortest <= longest.")
        self.longest, self.shortest = longest, shortest

    def propose(self, batch: Batch, limits: Int64[Tensor, " B"], streams: Streams) -> Draft:
        """See :class:`specbench.drafters.Drafter`."""
        first = lookup(batch.tokens, batch.lengths, self.longest, self.shortest)
        counts = torch.minimum(limits, batch.lengths - first)
        width = batch.at_most(counts, streams.width - 1)
        return Draft(batch.span(first, width).flatten(), None, counts, width, padded=True)
