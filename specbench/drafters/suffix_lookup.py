"""Drafting without a model from what the run has written so far: the texts that have ended, and the text itself.

Oliaro et al., "SuffixDecoding", arXiv 2411.04975. The longest ending of the text that occurs anywhere is looked up, and
what followed it most often is drafted. How long the ending is decides how many tokens are drafted, and how sure its
continuations are decides where the draft stops. The paper has suffix trees of the earlier outputs and of the own text,
and takes the better of their drafts; here all places with the longest ending count alike.

The draft is deterministic, so q is one-hot. What is drafted depends on the texts that ended before, and so on the
order of the requests, on how many are decoded side by side, and on the engine, which may tell of a text's end one step
later. Texts do not: at temperature 0 they are those of plain decoding, and at others they have its distribution, since
that holds for any draft that does not look at the uniforms of its own step. A run that is repeated drafts the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Int64
from torch import Tensor

from specbench.core.checks import check_count
from specbench.core.errors import ConfigError
from specbench.core.rng import Streams
from specbench.core.types import Draft
from specbench.drafters.base import Drafter
from specbench.drafters.prompt_lookup import check_per_match
from specbench.drafters.suffixes import BOUNDARY, Texts, most_frequent
from specbench.models import Engine, Pair
from specbench.sampling.batch import Batch


class SuffixLookupDrafter(Drafter):
    """Proposes nothing if no ending of the text occurred before. Works on the host, so no CUDA graph can hold it.

    Args:
        longest: tokens of an ending that are compared, at most.
        per_match: tokens to draft for each token of the ending that was found, rounded down; None: as many as there
            may be.
        least_share: a draft stops where fewer than this share of the places that were found go on like it, 0 to 1.
        remembered: tokens of ended texts that are kept, at least; beyond twice as many the oldest are forgotten. 0
            looks at the text alone.
    """

    capturable = False

    def __init__(
        self, longest: int = 24, per_match: object = 1.0, least_share: object = 0.1, remembered: int = 100_000
    ):
        self.longest = check_count("drafter.longest", longest)
        self.per_match = check_per_match(per_match)
        self.least_share = _check_share(least_share)
        self.remembered = check_count("drafter.remembered", remembered, least=0)

    def _attach(self, pair: Pair, target: Engine) -> None:
        self._texts: dict[int, Texts] = {}  # by row
        self.forget()

    def forget(self) -> None:
        """See :class:`specbench.drafters.Drafter`."""
        self._older, self._ended = Texts(), Texts()

    def ended(self, texts: Sequence[Sequence[int]]) -> None:
        """See :class:`specbench.drafters.Drafter`."""
        for text in texts if self.remembered else ():
            if self._ended.count >= self.remembered:
                self._older, self._ended = self._ended, Texts()
            self._ended.extend([*text, BOUNDARY])

    def propose(self, batch: Batch, limits: Int64[Tensor, " B"], streams: Streams) -> Draft:
        """See :class:`specbench.drafters.Drafter`."""
        device, most = batch.lengths.device, streams.width - 1
        drafts = [self._draft(row, room) for row, room in enumerate(self._caught_up(batch, limits))]
        counts = torch.tensor([len(each) for each in drafts], device=device)
        width = most if batch.fixed else max(map(len, drafts), default=0)
        tokens = torch.tensor(
            [[*each, *[0] * (width - len(each))] for each in drafts], dtype=torch.int64, device=device
        )
        return Draft(tokens.flatten(), None, counts, width, padded=True)

    def _caught_up(self, batch: Batch, limits: Int64[Tensor, " B"]) -> list[int]:
        """Takes in what the last step has emitted; returns the limits."""
        known = [self._texts[row].count if row in self._texts else 0 for row in range(len(batch))]
        lengths = torch.where(batch.running, batch.lengths, 0).tolist()
        width = max([length - seen for length, seen in zip(lengths, known, strict=True)] + [0])
        new = batch.span(torch.tensor(known, device=batch.lengths.device), width).tolist()
        for row, (tokens, seen, length) in enumerate(zip(new, known, lengths, strict=True)):
            if length > seen:
                self._texts[row].extend(tokens[: length - seen])
        return limits.tolist()

    def _draft(self, row: int, room: int) -> list[int]:
        if room == 0:
            return []
        places = (self._older, self._ended, self._texts[row])
        ending = self._texts[row].ending(self.longest)
        found = [each.longest(ending) for each in places]
        size = max(length for length, _ in found)
        most = room if self.per_match is None else min(room, int(size * self.per_match))
        following = [
            texts.following(place, most)
            for texts, (length, behind) in zip(places, found, strict=True)
            for place in behind
            if length == size
        ]
        return most_frequent(following, most, self.least_share)

    def start(self, prompts: Sequence[Sequence[int]], capacity: int) -> None:
        """See :class:`specbench.drafters.Drafter`. Texts that have ended are kept."""
        self._texts.clear()
        self.place(prompts, range(len(prompts)))

    def place(self, prompts: Sequence[Sequence[int]], rows: Sequence[int]) -> None:
        """See :class:`specbench.drafters.Drafter`."""
        self.feed([prompt[:-1] for prompt in prompts], rows, [0] * len(prompts))

    def feed(self, pieces: Sequence[Sequence[int]], rows: Sequence[int], first: Sequence[int]) -> None:
        """See :class:`specbench.drafters.Drafter`."""
        for piece, row, before in zip(pieces, rows, first, strict=True):
            if before == 0:
                self._texts[row] = Texts()
            self._texts[row].extend(piece)

    def move(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """See :class:`specbench.drafters.Drafter`."""
        for source, target in zip(sources, targets, strict=True):
            self._texts[target] = self._texts.pop(source, Texts())  # none yet, if its prompt is still to come


def _check_share(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ConfigError("drafter.least_share", value, "not a share", "Use a number from 0 to 1.")
    return float(value)
