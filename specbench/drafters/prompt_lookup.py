"""Drafting without a model: what followed the last time the text's ending occurred.

Saxena, "Prompt lookup decoding" (2023); the n-gram drafter of serving engines. The draft is deterministic, so q is
one-hot and a drafted token is accepted with probability p(token).

Endings of ``longest`` tokens are tried first, then shorter ones down to ``shortest``. What followed the most recent
earlier occurrence of the longest one that matches is drafted. It is found in an index, whose cost does not depend on
the length of the text: on a CPU in Python's dictionaries (suffixes.py), elsewhere in tensors (ngrams.py).
"""

from __future__ import annotations

import torch
from jaxtyping import Int64
from torch import Tensor

from specbench.core.checks import check_count, check_number
from specbench.core.errors import ConfigError
from specbench.core.rng import Streams
from specbench.core.types import Draft
from specbench.drafters.drafter import Drafter
from specbench.drafters.ngrams import NgramIndex
from specbench.drafters.suffixes import TextRows, Texts
from specbench.models import CachedModel, Pair
from specbench.sampling.batch import Batch


class PromptLookupDrafter(Drafter):
    """Proposes nothing if no ending of at least ``shortest`` tokens occurred before.

    Args:
        longest, shortest: sizes of the n-grams that are looked up, longest first.
        per_match: tokens to draft for each token of the ending that matched, rounded down, because a longer match
            predicts more. None drafts as many as the limits allow.
    """

    def __init__(self, longest: int = 3, shortest: int = 1, per_match: object = None):
        longest, shortest = check_count("drafter.longest", longest), check_count("drafter.shortest", shortest)
        if shortest > longest:
            raise ConfigError("drafter.shortest", shortest, f"not in 1..longest={longest}", "Use shortest <= longest.")
        self.longest, self.shortest, self.per_match = longest, shortest, check_per_match(per_match)

    def _attach(self, pair: Pair, target: CachedModel) -> None:
        on_host = target.device.type == "cpu"
        sizes = range(self.longest, self.shortest - 1, -1)
        self._index = TextRows(sizes) if on_host else NgramIndex(self.longest, self.shortest, target.device)
        self.caches = (self._index,)

    def propose(self, batch: Batch, limits: Int64[Tensor, " B"], streams: Streams) -> Draft:
        if isinstance(self._index, TextRows):
            return self._index.draft(batch, limits, self._continuation)
        rows = torch.arange(len(batch), device=batch.lengths.device)
        indexed = self._index.lengths[: len(batch)]
        pending = torch.where(batch.running, batch.lengths - indexed, 0)  # what the last step emitted
        new = batch.span(indexed, batch.at_most(pending, streams.width))
        places = self._index.append(rows, new, pending)
        sizes = torch.arange(self.shortest, self.longest + 1, device=rows.device)
        size, best = torch.where(places >= 0, sizes, 0).max(dim=1)
        first = torch.where(size > 0, places.gather(1, best[:, None])[:, 0], batch.lengths)
        counts = torch.minimum(limits, batch.lengths - first)
        if self.per_match is not None:
            counts = torch.minimum(counts, (size * self.per_match).long())
        counts = counts.clamp(min=0)  # a row without a request may hold the index of an earlier request
        width = batch.at_most(counts, streams.width - 1)
        return Draft(batch.span(first, width).flatten(), None, counts, width, padded=True)

    def _continuation(self, text: Texts, limit: int) -> list[int]:
        size, place = text.latest()
        return text.following(place, limit if self.per_match is None else min(limit, int(size * self.per_match)))


def check_per_match(value: object) -> float | None:
    """Raises ConfigError for anything but None or a number above 0."""
    if value is None:
        return None
    return float(check_number("drafter.per_match", value, "(0, inf)", "Use 1, or null for no such limit."))
