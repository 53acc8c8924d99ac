"""Which bias the bets would have found: simulated on the texts that were sampled.

Plain and speculative texts are drawn again from all sampled texts of a prompt. At each token of a speculative one,
where enough texts begin likewise, probability ``bias`` moves from the other tokens to one: to the likeliest (a verifier
that accepts too much of a sharper draft does that), or to one that each context has of its own (drawn by its
probability: a bias without a direction in common). So the total variation a token is ``bias``, or 1 - p of the token
that gains if that is less. The bets are made on these texts, and the bias is found if they reject.

Texts that were drawn again would repeat each other more than fresh ones do. So what was seen once stands for what was
not seen (Good and Turing): from there on a text goes on with tokens that no other text has.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import stats

from specbench.exactness.two_sample.bets import evidence
from specbench.exactness.two_sample.pairs import KNOWN, TextPairs

TOWARDS_LIKELIEST, OWN_DIRECTION = "towards the likeliest token", "towards a token of each context's own"
RUNS, HALVINGS, GROWTH = 8, 5, 1.5  # simulations of each bias; steps of the search; see evidence()


@dataclass(frozen=True)
class PowerRow:
    """The smallest bias that would have been found.

    Attributes:
        direction: where probability moves.
        bias: total variation a token; None if not even 1/2 is found.
        power: with which it is found.
    """

    direction: str
    bias: float | None
    power: float
    false_alarm: float


def power_rows(pairs: TextPairs, false_alarm: float, power: float, seed: int) -> list[PowerRow]:
    """The smallest bias found with probability ``power``, for both directions."""
    law = _Law(pairs)
    return [
        PowerRow(direction, _smallest(law, direction, false_alarm, power, seed), power, false_alarm)
        for direction in (TOWARDS_LIKELIEST, OWN_DIRECTION)
    ]


def _smallest(law: _Law, direction: str, false_alarm: float, power: float, seed: int) -> float | None:
    """Halves an interval of the logarithm of the bias."""
    # The quantile of a normal sample of unknown mean and spread, for the next run.
    reach = float(stats.t.isf(1 - power, RUNS - 1)) * math.sqrt(1 + 1 / RUNS)

    def detects(bias: float) -> bool:
        """Whether the final log wealth is large enough in a share ``power`` of runs, as a normal variable."""
        drawn = (law.drawn(np.random.default_rng([seed, run]), bias, direction) for run in range(RUNS))
        final = [float(evidence(pairs, GROWTH).log_wealth[-1]) for pairs in drawn]
        return float(np.mean(final)) - reach * float(np.std(final, ddof=1)) >= -math.log(false_alarm)

    low, high = math.log(0.002), math.log(0.5)
    if not detects(0.5):
        return None
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if detects(math.exp(middle)) else (middle, high)
    return math.exp(high)


class _Law:
    """The distribution of all sampled texts, prompt by prompt; texts in lexicographic order, so that those that begin
    likewise are neighbours."""

    def __init__(self, pairs: TextPairs):
        texts, owners = pairs.tokens.reshape(-1, pairs.length), np.repeat(pairs.prompts, 2)
        order = np.lexsort((*texts.T[::-1], owners))
        self.prompts, self.texts, owners = pairs.prompts, texts[order], owners[order]
        both = (pairs.classes, pairs.ratios)
        self.known = [None if array is None else array.reshape(-1, pairs.length)[order] for array in both]
        self.first = np.searchsorted(owners, self.prompts)
        self.stop = np.searchsorted(owners, self.prompts, side="right")
        changed = np.ones(len(owners), dtype=bool)
        changed[1:] = owners[1:] != owners[:-1]
        self.alone = np.full(len(owners), pairs.length)  # the position from which on no other text is like a text
        self.nodes = []  # of each position: the first and the last text that begin as a text does, up to there
        for place in range(pairs.length + 1):
            begins = np.flatnonzero(changed)
            number = changed.cumsum() - 1
            self.nodes.append((begins[number], np.append(begins[1:], len(owners))[number]))
            single = (self.nodes[-1][1] - self.nodes[-1][0] == 1) & (self.alone == pairs.length)
            self.alone[single] = max(place - 1, 0)
            if place < pairs.length:
                changed[1:] |= self.texts[1:, place] != self.texts[:-1, place]

    def drawn(self, rng: np.random.Generator, bias: float, direction: str) -> TextPairs:
        """Pairs of which the second text is biased."""
        plain, biased = (self._between(rng, self.first, self.stop) for _ in range(2))
        for place in range(self.texts.shape[1]):
            (begin, end), (inner, inner_end) = self.nodes[place], self.nodes[place + 1]
            own = self._between(rng, begin, end)[begin]  # one text of those that begin likewise; its next token gains
            gains = self._likeliest(place) if direction == TOWARDS_LIKELIEST else own
            share = (inner_end[gains] - inner[gains]) / (end - begin)
            moved = np.minimum(1.0, bias / np.maximum(1 - share, 1e-12)) * (end - begin >= KNOWN) * (share < 1)
            turned = rng.random(len(biased)) < moved[biased]
            there = gains[biased]
            biased = np.where(turned, self._between(rng, inner[there], inner_end[there]), biased)
        chosen = np.stack([plain, biased], axis=1)
        tokens, new = self.texts[chosen], np.arange(chosen.size).reshape(*chosen.shape, 1)
        fresh = (np.arange(tokens.shape[2]) >= self.alone[chosen][:, :, None]) & (tokens >= 0)
        known = [None if array is None else array[chosen] for array in self.known]
        return TextPairs(self.prompts, np.where(fresh, self.texts.max(initial=0) + 1 + new, tokens), *known)

    def _likeliest(self, place: int) -> np.ndarray:
        """For each text, a text that begins likewise and goes on with the most frequent token."""
        begin, _ = self.nodes[place]
        inner, inner_end = self.nodes[place + 1]
        order = np.lexsort((inner_end - inner, begin))
        last = np.searchsorted(begin[order], begin, side="right") - 1
        return order[last]

    @staticmethod
    def _between(rng: np.random.Generator, begin: np.ndarray, end: np.ndarray) -> np.ndarray:
        return begin + (rng.random(len(begin)) * (end - begin)).astype(np.int64)
