"""Looks up the longest ending of a text in other texts, and the tokens that followed it. Runs on the host.

An n-gram of some sizes leads to the positions behind its occurrences. To find endings longer than these n-grams, the
tokens before the positions are compared with the ending. Only the latest MOST positions are compared, so that a
frequent token costs no more than a rare one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from specbench.core.types import Draft
from specbench.models import RowCache
from specbench.sampling.batch import Batch

KEYS = (4, 1)  # sizes of the n-grams that lead to positions of longer endings
MOST = 256  # positions that are compared
BOUNDARY = -1  # stands between two texts; no token


class Texts:
    """The concatenated tokens of one or more texts.

    Args:
        sizes: of the n-grams that lead to positions, the largest first.

    Attributes:
        count: the number of tokens, with a boundary behind each text that has ended.
    """

    def __init__(self, sizes: Sequence[int] = KEYS):
        self._sizes = sizes
        self._tokens = np.empty(64, dtype=np.int64)
        self._places: dict[tuple[int, ...], list[int]] = {}
        self.count = 0

    def extend(self, tokens: Sequence[int]) -> None:
        """Appends tokens; BOUNDARY ends a text."""
        while self.count + len(tokens) > len(self._tokens):
            self._tokens = np.concatenate([self._tokens, np.empty_like(self._tokens)])
        self._tokens[self.count : self.count + len(tokens)] = tokens
        first = max(self.count - self._sizes[0] + 1, 0)
        recent = self._tokens[first : self.count + len(tokens)].tolist()
        for end in range(self.count - first + 1, len(recent) + 1):
            for size in self._sizes:
                key = tuple(recent[max(end - size, 0) : end])
                if len(key) == size and BOUNDARY not in key:
                    self._places.setdefault(key, []).append(first + end)
        self.count += len(tokens)

    def ending(self, most: int) -> list[int]:
        """Returns the last tokens, at most ``most``."""
        return self._tokens[max(self.count - most, 0) : self.count].tolist()

    def longest(self, ending: Sequence[int]) -> tuple[int, list[int]]:
        """Returns the number of last tokens of ``ending`` that occur here, and the positions behind them, latest last.

        An occurrence at the very end does not count, because no token follows it.
        """
        for size in self._sizes:
            places = [] if len(ending) < size else self._places.get(tuple(ending[-size:]), [])
            behind = np.array([place for place in places[-MOST - 1 :] if place < self.count][-MOST:], dtype=np.int64)
            if len(behind):
                backs = np.arange(1, len(ending) + 1)
                before = self._tokens[np.maximum(behind[:, None] - backs, 0)]
                same = (before == np.array(ending)[::-1]) & (behind[:, None] >= backs)
                lengths = np.minimum.accumulate(same, axis=1).sum(axis=1)
                return int(lengths.max()), behind[lengths == lengths.max()].tolist()
        return 0, []

    def latest(self) -> tuple[int, int]:
        """Returns the size of the largest n-gram at the end of a text that occurs before, and the position behind its
        latest such occurrence; 0 and ``count`` if there is none."""
        ending = self.ending(self._sizes[0])
        for size in self._sizes:
            places = self._places.get(tuple(ending[-size:]), [])  # the last one is the end
            if len(places) > 1:
                return size, places[-2]
        return 0, self.count

    def following(self, place: int, most: int) -> list[int]:
        """Returns at most ``most`` tokens from a position on, up to the end of their text."""
        tokens = self._tokens[place : min(place + most, self.count)].tolist()
        return tokens[: tokens.index(BOUNDARY)] if BOUNDARY in tokens else tokens


class TextRows(RowCache):
    """The text of each request, by its row."""

    def __init__(self, sizes: Sequence[int] = KEYS):
        self._sizes = sizes
        self._texts: dict[int, Texts] = {}

    def draft(
        self, batch: Batch, limits: Int64[Tensor, " B"], continuation: Callable[[Texts, int], list[int]]
    ) -> Draft:
        """Adds what the last step emitted, and returns a draft of each text's continuation.

        Args:
            continuation: returns at most this number of tokens to draft behind a text.
        """
        self._catch_up(batch)
        device, of_rows = batch.lengths.device, enumerate(limits.tolist())
        drafts = [continuation(self._texts[row], limit) if limit else [] for row, limit in of_rows]
        width = max(map(len, drafts), default=0)
        if width == 0:
            return Draft.empty(len(batch), device)
        tokens = [token for draft in drafts for token in (*draft, *[0] * (width - len(draft)))]
        counts = torch.tensor([len(draft) for draft in drafts], device=device)
        return Draft(torch.tensor(tokens, device=device), None, counts, width, padded=True)

    def _catch_up(self, batch: Batch) -> None:
        """Adds the tokens that the last step emitted to the texts."""
        counts = [self._texts[row].count if row in self._texts else 0 for row in range(len(batch))]
        lengths = torch.where(batch.running, batch.lengths, 0).tolist()
        width = max([length - count for length, count in zip(lengths, counts, strict=True)] + [0])
        new = batch.span(torch.tensor(counts, device=batch.lengths.device), width).tolist()
        for row, (tokens, count, length) in enumerate(zip(new, counts, lengths, strict=True)):
            if length > count:
                self._texts[row].extend(tokens[: length - count])

    def feed(self, pieces: Sequence[Sequence[int]], rows: Sequence[int], first: Sequence[int]) -> None:
        for piece, row, before in zip(pieces, rows, first, strict=True):
            if before == 0:
                self._texts[row] = Texts(self._sizes)
            self._texts[row].extend(piece)

    def move(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """See :class:`specbench.models.RowCache`. A row has no text before the first piece of its prompt."""
        for source, target in zip(sources, targets, strict=True):
            self._texts[target] = self._texts.pop(source, Texts(self._sizes))

    def show(self, rows: int, longest: int | None = None) -> None:
        if rows == 0:
            self._texts.clear()


def most_frequent(following: Iterable[Sequence[int]], most: int, least_share: float) -> list[int]:
    """Returns the most frequent continuation of some lists, token by token.

    Each token is the most frequent one after those before it; of equally frequent tokens, the one in the later list.

    Args:
        most: the length of the result, at most.
        least_share: the result ends where fewer than this share of all lists agree with it.
    """
    agreeing = list(following)[::-1]
    total, continuation = len(agreeing), list[int]()
    while len(continuation) < most:
        at = len(continuation)
        counts = Counter(tokens[at] for tokens in agreeing if len(tokens) > at)
        if not counts:
            break
        token, count = counts.most_common(1)[0]  # the first of equal counts
        if count < least_share * total:
            break
        continuation.append(token)
        agreeing = [tokens for tokens in agreeing if len(tokens) > at and tokens[at] == token]
    return continuation
