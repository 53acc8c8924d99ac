"""Looks up the longest ending of a text in other texts, and the tokens that followed it most often. Runs on the host.

An n-gram of each size of KEYS leads to the positions behind its occurrences, and the tokens before these positions are
compared with the ending. Only the latest MOST positions are compared, so that a frequent token costs no more than a
rare one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from specbench.models import RowCache

KEYS = (4, 1)  # sizes of the n-grams that lead to positions
MOST = 256  # positions that are compared
BOUNDARY = -1  # stands between two texts; no token


class Texts:
    """The concatenated tokens of one or more texts.

    Attributes:
        count: the number of tokens, with a boundary behind each text that has ended.
    """

    def __init__(self) -> None:
        self._tokens = np.empty(64, dtype=np.int64)
        self._places: dict[tuple[int, ...], list[int]] = {}
        self.count = 0

    def extend(self, tokens: Sequence[int]) -> None:
        """Appends tokens; BOUNDARY ends a text."""
        while self.count + len(tokens) > len(self._tokens):
            self._tokens = np.concatenate([self._tokens, np.empty_like(self._tokens)])
        self._tokens[self.count : self.count + len(tokens)] = tokens
        first = max(self.count - KEYS[0] + 1, 0)
        recent = self._tokens[first : self.count + len(tokens)].tolist()
        for end in range(self.count - first + 1, len(recent) + 1):
            for size in KEYS:
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
        for size in KEYS:
            places = [] if len(ending) < size else self._places.get(tuple(ending[-size:]), [])
            behind = np.array([place for place in places[-MOST - 1 :] if place < self.count][-MOST:], dtype=np.int64)
            if len(behind):
                backs = np.arange(1, len(ending) + 1)
                before = self._tokens[np.maximum(behind[:, None] - backs, 0)]
                same = (before == np.array(ending)[::-1]) & (behind[:, None] >= backs)
                lengths = np.minimum.accumulate(same, axis=1).sum(axis=1)
                return int(lengths.max()), behind[lengths == lengths.max()].tolist()
        return 0, []

    def following(self, place: int, most: int) -> list[int]:
        """Returns at most ``most`` tokens from a position on, up to the end of their text."""
        tokens = self._tokens[place : min(place + most, self.count)].tolist()
        return tokens[: tokens.index(BOUNDARY)] if BOUNDARY in tokens else tokens


class TextRows(RowCache):
    """The text of each request, by its row."""

    def __init__(self) -> None:
        self._texts: dict[int, Texts] = {}

    def __getitem__(self, row: int) -> Texts:
        return self._texts[row]

    def count(self, row: int) -> int:
        """Returns the number of tokens of a row; 0 for a row without a request."""
        return self._texts[row].count if row in self._texts else 0

    def feed(self, pieces: Sequence[Sequence[int]], rows: Sequence[int], first: Sequence[int]) -> None:
        """See :class:`specbench.models.RowCache`."""
        for piece, row, before in zip(pieces, rows, first, strict=True):
            if before == 0:
                self._texts[row] = Texts()
            self._texts[row].extend(piece)

    def move(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """See :class:`specbench.models.RowCache`. A row has no text before the first piece of its prompt."""
        for source, target in zip(sources, targets, strict=True):
            self._texts[target] = self._texts.pop(source, Texts())

    def show(self, rows: int, longest: int | None = None) -> None:
        """See :class:`specbench.models.RowCache`."""
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
