"""Drafting without a model: what followed the last time the text's ending occurred.

Saxena, "Prompt lookup decoding" (2023); the n-gram drafter of serving engines. The draft is deterministic, so q is
one-hot and a drafted token is accepted with probability p(token).

:func:`lookup` says in plain code what is drafted, by a look at the whole text. The drafter finds the same in an index
(ngrams.py), for which the length of the text does not matter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from jaxtyping import Int64
from torch import Tensor

from specbench.core.errors import ConfigError
from specbench.core.rng import Streams
from specbench.core.types import Draft
from specbench.drafters.base import Drafter
from specbench.drafters.ngrams import NgramIndex
from specbench.models import Engine, Pair
from specbench.sampling.batch import Batch


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
    """Proposes nothing if no ending of at least ``shortest`` tokens occurred before.

    Args:
        longest, shortest: sizes of the n-grams tried, longest first.
        per_match: tokens to draft for each token of the ending that was found, rounded down: a longer match promises
            more. None drafts as many as there may be, whatever was found.
    """

    def __init__(self, longest: int = 3, shortest: int = 1, per_match: object = None):
        if not 1 <= shortest <= longest:
            raise ConfigError("drafter.shortest", shortest, f"not in 1..longest={longest}", "Use shortest <= longest.")
        self.longest, self.shortest, self.per_match = longest, shortest, check_per_match(per_match)

    def _attach(self, pair: Pair, target: Engine) -> None:
        self._index, self.layout = NgramIndex(self.longest, self.shortest, target.device), 0

    def propose(self, batch: Batch, limits: Int64[Tensor, " B"], streams: Streams) -> Draft:
        """See :class:`specbench.drafters.Drafter`."""
        rows = torch.arange(len(batch), device=batch.lengths.device)
        known = self._index.known[: len(batch)]
        pending = torch.where(batch.running, batch.lengths - known, 0)  # what the last step emitted
        new = batch.span(known, batch.at_most(pending, streams.width))
        places = self._index.append(rows, new, pending)
        sizes = torch.arange(self.shortest, self.longest + 1, device=rows.device)
        size, best = torch.where(places >= 0, sizes, 0).max(dim=1)
        first = torch.where(size > 0, places.gather(1, best[:, None])[:, 0], batch.lengths)
        counts = torch.minimum(limits, batch.lengths - first)
        if self.per_match is not None:
            counts = torch.minimum(counts, (size * self.per_match).long())
        counts = counts.clamp(min=0)  # a row without a request may hold the index of an earlier one
        width = batch.at_most(counts, streams.width - 1)
        return Draft(batch.span(first, width).flatten(), None, counts, width, padded=True)

    def state(self) -> tuple[Tensor, ...]:
        """See :class:`specbench.drafters.Drafter`."""
        return self._index.tokens, self._index.known, self._index.table

    def start(self, prompts: Sequence[Sequence[int]], capacity: int) -> None:
        """See :class:`specbench.drafters.Drafter`."""
        self.reserve(len(prompts), capacity)
        self.place(prompts, range(len(prompts)))

    def reserve(self, rows: int, capacity: int) -> None:
        """See :class:`specbench.drafters.Drafter`."""
        self.layout += self._index.reserve(rows, capacity)

    def place(self, prompts: Sequence[Sequence[int]], rows: Sequence[int]) -> None:
        """See :class:`specbench.drafters.Drafter`."""
        self.feed([prompt[:-1] for prompt in prompts], rows, [0] * len(prompts))

    def feed(self, pieces: Sequence[Sequence[int]], rows: Sequence[int], first: Sequence[int]) -> None:
        """See :class:`specbench.drafters.Drafter`."""
        if pieces:
            self._index.feed(pieces, rows, first)

    def move(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """See :class:`specbench.drafters.Drafter`."""
        self._index.move(sources, targets)


def check_per_match(value: object) -> float | None:
    """Raises ConfigError for anything but None or a number above 0."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ConfigError("drafter.per_match", value, "not a number above 0", "Use 1, or null for no such limit.")
    return float(value)
