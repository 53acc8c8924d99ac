"""Drafting without a model: what followed the last time the text's ending occurred.

Saxena, "Prompt lookup decoding" (2023); the n-gram drafter of serving engines. The draft is deterministic, so q is
one-hot and a drafted token is accepted with probability p(token).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from specbench.errors import ConfigError
from specbench.models import Pair
from specbench.rng import Streams
from specbench.sampling import RowParams
from specbench.types import Draft


def lookup(sequence: Sequence[int], limit: int, longest: int, shortest: int) -> list[int]:
    """At most ``limit`` tokens that followed the most recent earlier occurrence of the longest matching ending."""
    for size in range(min(longest, len(sequence) - 1), shortest - 1, -1):
        ending = list(sequence[-size:])
        for start in range(len(sequence) - size - 1, -1, -1):
            if list(sequence[start : start + size]) == ending:
                return list(sequence[start + size : start + size + limit])
    return []


class PromptLookupDrafter:
    """Proposes nothing where no ending of at least ``shortest`` tokens occurred before.

    Args:
        longest, shortest: sizes of the n-grams tried, longest first.
    """

    engine = None

    def __init__(self, pair: Pair, longest: int = 3, shortest: int = 1):
        if not 1 <= shortest <= longest:
            raise ConfigError("drafter.shortest", shortest, f"not in 1..longest={longest}", "Use shortest <= longest.")
        self.longest, self.shortest, self.device = longest, shortest, pair.target.device

    def start(self, prompts: Sequence[Sequence[int]], capacity: int) -> None:
        """See :class:`specbench.drafters.Drafter`."""

    def propose(
        self, sequences: Sequence[Sequence[int]], limits: Sequence[int], params: RowParams, streams: Streams
    ) -> Draft:
        """See :class:`specbench.drafters.Drafter`."""
        found = [
            lookup(sequence, limit, self.longest, self.shortest) if limit else []
            for sequence, limit in zip(sequences, limits, strict=True)
        ]
        counts = [len(tokens) for tokens in found]
        token_ids = torch.tensor([t for tokens in found for t in tokens], dtype=torch.int64, device=self.device)
        return Draft(token_ids, None, torch.tensor(counts, device=self.device), max(counts))

    def commit(self, agreed: Sequence[int]) -> None:
        """See :class:`specbench.drafters.Drafter`."""

    def keep(self, rows: Sequence[int]) -> None:
        """See :class:`specbench.drafters.Drafter`."""
