"""Texts in which the longest ending of another text is looked up, and what followed it most often.

On the host: an n-gram of KEY tokens leads to the places behind its occurrences, and these places are compared further
back with the ending. Of many places the latest MOST are looked at, so that a common token costs no more than a rare
one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

KEYS = (4, 1)  # sizes of the n-grams that lead to places
MOST = 256  # places that are compared
BOUNDARY = -1  # between two texts; no token


class Texts:
    """Tokens of one or more texts, one behind the other.

    Attributes:
        count: of all tokens, with a boundary behind each text that has ended.
    """

    def __init__(self) -> None:
        self._tokens = np.empty(64, dtype=np.int64)
        self._places: dict[tuple[int, ...], list[int]] = {}
        self.count = 0

    def extend(self, tokens: Sequence[int]) -> None:
        """Takes in what follows; BOUNDARY ends a text."""
        while self.count + len(tokens) > len(self._tokens):
            self._tokens = np.concatenate([self._tokens, np.empty_like(self._tokens)])
        self._tokens[self.count : self.count + len(tokens)] = tokens
        first = max(self.count - KEYS[0] + 1, 0)
        known = self._tokens[first : self.count + len(tokens)].tolist()
        for end in range(self.count - first + 1, len(known) + 1):
            for size in KEYS:
                key = tuple(known[max(end - size, 0) : end])
                if len(key) == size and BOUNDARY not in key:
                    self._places.setdefault(key, []).append(first + end)
        self.count += len(tokens)

    def ending(self, most: int) -> list[int]:
        """The last tokens."""
        return self._tokens[max(self.count - most, 0) : self.count].tolist()

    def longest(self, ending: Sequence[int]) -> tuple[int, list[int]]:
        """How many of the last tokens of ``ending`` occur here, and the places behind them, the latest last.

        An occurrence at the very end does not count: nothing follows it.
        """
        for size in KEYS:
            places = [] if len(ending) < size else self._places.get(tuple(ending[-size:]), [])
            found = np.array([place for place in places[-MOST - 1 :] if place < self.count][-MOST:], dtype=np.int64)
            if len(found):
                backs = np.arange(1, len(ending) + 1)
                there = self._tokens[np.maximum(found[:, None] - backs, 0)]
                same = (there == np.array(ending)[::-1]) & (found[:, None] >= backs)
                lengths = np.minimum.accumulate(same, axis=1).sum(axis=1)
                return int(lengths.max()), found[lengths == lengths.max()].tolist()
        return 0, []

    def following(self, place: int, most: int) -> list[int]:
        """The tokens from a place on, to the end of the text that they are of."""
        tokens = self._tokens[place : min(place + most, self.count)].tolist()
        return tokens[: tokens.index(BOUNDARY)] if BOUNDARY in tokens else tokens


def most_frequent(following: Iterable[Sequence[int]], most: int, least_share: float) -> list[int]:
    """The token that comes first in most of some lists, then the one that comes next in most of those that begin with
    it, and so on. Of tokens that come equally often it is the one of the later list.

    Args:
        most: tokens at most.
        least_share: it ends where fewer than this share of all lists go on so.
    """
    agreeing = list(following)[::-1]
    total, found = len(agreeing), list[int]()
    while len(found) < most:
        at = len(found)
        counts = Counter(each[at] for each in agreeing if len(each) > at)
        if not counts:
            break
        token, count = counts.most_common(1)[0]  # of equals the first that was met
        if count < least_share * total:
            break
        found.append(token)
        agreeing = [each for each in agreeing if len(each) > at and each[at] == token]
    return found
