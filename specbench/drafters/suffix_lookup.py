"""Drafting without a model from the texts of this run: finished texts, and the text itself.

Oliaro et al., "SuffixDecoding", arXiv 2411.04975. The longest ending of the text that occurs anywhere is looked up, and
its most frequent continuation is drafted. The length of the ending limits the number of drafted tokens, and the draft
stops where its continuations disagree. The paper has suffix trees of the earlier outputs and of the text itself, and
takes the better of their drafts. Here all occurrences of the longest ending count alike.

The draft is deterministic, so q is one-hot. It depends on the texts that ended before, and so on the order of the
requests, on the batch size, and on the engine, which may report the end of a text one step later. Texts do not depend
on it: at temperature 0 they are those of plain decoding, and at others they have its distribution, as with any draft
that does not depend on the uniforms of its own step. A run that is repeated drafts the same.
"""

from __future__ import annotations

from collections.abc import Sequence

from jaxtyping import Int64
from torch import Tensor

from specbench.core.checks import check_count
from specbench.core.rng import Streams
from specbench.core.types import Draft
from specbench.drafters.drafter import Drafter
from specbench.drafters.prompt_lookup import check_per_match
from specbench.drafters.suffixes import BOUNDARY, TextRows, Texts, most_frequent
from specbench.models import CachedModel, Pair
from specbench.sampling.batch import Batch

LEAST_SHARE = 0.1  # a draft stops where fewer than this share of the occurrences agree with it


class SuffixLookupDrafter(Drafter):
    """Drafts nothing if no ending of the text occurred before. Works on the host, so no CUDA graph can hold it.

    Args:
        longest: tokens of an ending that are compared, at most.
        per_match: tokens to draft for each token of the ending that matched, rounded down; None: as many as the limits
            allow.
        remembered: tokens of ended texts that are kept, at least; beyond twice this number the oldest are forgotten. 0
            looks at the text alone.
    """

    capturable = False
    takes_free_rows = True

    def __init__(self, longest: int = 24, per_match: object = 1.0, remembered: int = 100_000):
        self.longest = check_count("drafter.longest", longest)
        self.per_match = check_per_match(per_match)
        self.remembered = check_count("drafter.remembered", remembered, least=0)

    def _attach(self, pair: Pair, target: CachedModel) -> None:
        self._texts = TextRows()
        self.caches = (self._texts,)
        self.forget()

    def forget(self) -> None:
        self._older, self._ended = Texts(), Texts()

    def ended(self, texts: Sequence[Sequence[int]]) -> None:
        for text in texts if self.remembered else ():
            if self._ended.count >= self.remembered:
                self._older, self._ended = self._ended, Texts()
            self._ended.extend([*text, BOUNDARY])

    def propose(self, batch: Batch, limits: Int64[Tensor, " B"], streams: Streams) -> Draft:
        return self._texts.draft(batch, limits, self._continuation)

    def _continuation(self, text: Texts, limit: int) -> list[int]:
        searched = (self._older, self._ended, text)
        ending = text.ending(self.longest)
        matches = [texts.longest(ending) for texts in searched]
        size = max(length for length, _ in matches)
        most = limit if self.per_match is None else min(limit, int(size * self.per_match))
        following = [
            texts.following(place, most)
            for texts, (length, places) in zip(searched, matches, strict=True)
            for place in places
            if length == size
        ]
        return most_frequent(following, most, LEAST_SHARE)
