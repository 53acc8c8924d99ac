"""Evidence that speculative texts are distributed otherwise than plain ones, valid whenever one looks.

Of a pair of texts of one prompt, with seeds of their own, one is plain and one is speculative. If both ways have one
distribution, whichever it is, either text is the speculative one with probability 1/2, whatever came before. So a
guess from earlier pairs, which gives the right assignment the probability g, multiplies a stake by 2g, whose mean is 1.
The mean W of the wealth of several guessers, which each start with 1, exceeds 1/alpha at any time with probability at
most alpha (Ville's inequality): Pandeva, Bakker, Naesseth and Forré, "E-valuating classifier two-sample tests",
arXiv 2210.13027; Podkopaev and Ramdas, "Sequential predictive two-sample and independence testing", arXiv 2305.00143.
Nothing is assumed of the engine but that its texts with different seeds are independent.

A guesser may learn whatever it likes from earlier pairs, such as which tokens are likely after some beginning: what it
learnt is fixed before the pair is seen, and it treats both texts of the pair alike. So classes of tokens need not be
true ones. They are guessed as soon as KNOWN earlier texts begin likewise, and worse guesses only find less.

A guesser looks at one feature: what stands in a context, such as "the next token, given all before it". Of an item
that was seen a times in speculative and b times in plain texts, in a context with shares r and 1 - r of both, the odds
that a text which has it is speculative are those of a beta distribution with mean r and strength 2c, over r / (1 - r).
"""

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from specbench.exactness.statistics.bets import log_mean_wealth, rejected_at
from specbench.exactness.two_sample.pairs import BEHIND, END, KNOWN, PLAIN, SPECULATIVE, TextPairs, numbered

STRENGTHS = (1.0, 8.0, 64.0)  # c: a guesser that expects large biases, one for middle and one for small ones
SMALLEST, GROWTH = 16, 1.15  # pairs that are bet on before the first look back, and the growth between two of them
LIKELIEST, TENTH, RARER = 1, 2, 3  # classes of tokens by their estimated probability; 0: not enough texts to know
CLASSES = {LIKELIEST: "the likeliest", TENTH: "another of at least 0.1", RARER: "rarer"}


@dataclass(frozen=True, eq=False)
class BetResults:
    """What bets on R pairs of texts came to.

    Attributes:
        log_wealth: float [R], log W after each pair.
        bets: final log wealth of each bet, by the name of its feature; of several strengths the largest.
        classes: int [R, 2, L], the class of each token by the pairs before it, 0 if these are too few.
    """

    log_wealth: np.ndarray
    bets: dict[str, float]
    classes: np.ndarray

    def rejected_at(self, false_alarm: float) -> int | None:
        """Pairs after which the evidence exceeds 1 / ``false_alarm``; None if it never does."""
        return rejected_at(self.log_wealth, false_alarm)


@dataclass(frozen=True, eq=False)
class Feature:
    """What a guesser looks at: ``items`` int [R, 2, K] seen in ``contexts`` of that shape, -1 where there is none."""

    name: str
    contexts: np.ndarray
    items: np.ndarray


def features(pairs: TextPairs) -> list[Feature]:
    """The features of texts that do not depend on other texts."""
    tokens, before = pairs.tokens, pairs.beginnings
    there = tokens != BEHIND
    place = np.broadcast_to(np.arange(pairs.length), tokens.shape)
    previous = _shifted(tokens, 1)
    lengths = (tokens >= 0).sum(axis=2, keepdims=True)
    made = [
        ("first token, given the prompt", before, tokens, place == 0),
        ("second token, given the first", before, tokens, place == 1),
        ("later tokens, given all before", before, tokens, place > 1),
        ("tokens, given the previous one", previous, tokens, place > 0),
        ("tokens behind the first", np.zeros_like(tokens), tokens, place > 0),
        ("repetitions in a text", place, _repetitions(tokens), place > 0),
        ("number of tokens", np.zeros_like(lengths), lengths, np.ones_like(lengths, dtype=bool)),
    ]
    if pairs.ratios is not None:
        ratios, known = pairs.ratios, pairs.ratios > 0
        made.append(("draft's probability over the target's", np.zeros_like(tokens), ratios, known))
        made.append(("draft's probability over the target's, by position", place, ratios, known))
    return [
        _feature(name, contexts, items, kept & there[:, :, : kept.shape[2]]) for name, contexts, items, kept in made
    ]


def preceding(pairs: TextPairs) -> list[np.ndarray]:
    """Numbers int [R, 2, L] of what precedes each token, from all of it to the previous token alone.

    Where too few texts begin likewise, those with the same last two tokens, or the same last one, tell which tokens
    are likely.
    """
    prompts = np.broadcast_to(pairs.prompts[:, None, None], pairs.tokens.shape)
    one, two = (_shifted(pairs.tokens, by) for by in (1, 2))
    return [pairs.beginnings, numbered(prompts, one, two), numbered(prompts, one), one]


def _shifted(tokens: np.ndarray, by: int) -> np.ndarray:
    """The token ``by`` places earlier; END before the first."""
    start = np.full_like(tokens[:, :, :by], END)
    return np.concatenate([start, tokens[:, :, :-by]], axis=2)[:, :, : tokens.shape[2]]


def evidence(pairs: TextPairs, growth: float = GROWTH) -> BetResults:
    """Bets on every pair by what the pairs of earlier blocks show.

    Args:
        growth: of the pairs between two looks back. A block of pairs is guessed from the blocks before it.
    """
    given, count = features(pairs), len(pairs.prompts)
    contexts = preceding(pairs) if pairs.classes is None else []
    tables = [_NextTokenCounts(numbered(context), numbered(context, pairs.tokens)) for context in contexts]
    classes = np.zeros(pairs.tokens.shape, dtype=np.int64) if pairs.classes is None else pairs.classes
    by_class = [_ItemCounts(len(CLASSES) + 1, 1), _ItemCounts((len(CLASSES) + 1) * pairs.length, pairs.length)]
    tallies = [
        _ItemCounts(int(feature.items.max(initial=0)) + 1, int(feature.contexts.max(initial=0)) + 1)
        for feature in given
    ]
    names = [*(feature.name for feature in given), "probabilities of tokens", "probabilities of tokens, by position"]
    gains = np.zeros((len(names), len(STRENGTHS), count))
    for start, stop in blocks(count, growth):
        part = slice(start, stop)
        for table in tables:
            unknown = (classes[part] == 0) & (pairs.tokens[part] != BEHIND)
            classes[part] = np.where(unknown, table.classes(part), classes[part])
        seen = [
            (tally, feature.contexts[part], feature.items[part]) for tally, feature in zip(tallies, given, strict=True)
        ]
        seen += [(tally, *keys) for tally, keys in zip(by_class, _class_keys(classes[part]), strict=True)]
        for number, (tally, contexts, items) in enumerate(seen):
            gains[number, :, part] = tally.gains(contexts, items)
            tally.add(contexts, items)
        for table in tables:
            table.add(part)
    paths = gains.cumsum(axis=2)
    bets = paths.reshape(len(names) * len(STRENGTHS), count)
    log_wealth = log_mean_wealth(bets, axis=0)
    final = paths[:, :, -1].max(axis=1) if count else np.zeros(len(names))
    return BetResults(log_wealth, dict(zip(names, final.tolist(), strict=True)), classes)


def blocks(count: int, growth: float) -> list[tuple[int, int]]:
    """Beginnings and ends of the blocks of pairs; those of fewer pairs are the first of those of more."""
    ends = [0]
    while ends[-1] < count:
        ends.append(max(ends[-1] + SMALLEST, math.ceil(ends[-1] * growth)))
    return [(start, min(stop, count)) for start, stop in pairwise(ends)]


class _ItemCounts:
    """How often items and contexts were seen in plain and in speculative texts."""

    def __init__(self, items: int, contexts: int):
        self.items, self.contexts = np.zeros((2, items)), np.zeros((2, contexts))

    def gains(self, contexts: np.ndarray, items: np.ndarray) -> np.ndarray:
        """float [strengths, r]: the logarithm of what each pair multiplies a stake by."""
        (b, a), (plain, speculative) = self.items[:, items], self.contexts[:, contexts]
        log_factors = []
        for c in STRENGTHS:
            share = (speculative + c) / (plain + speculative + 2 * c)
            odds = (a + 2 * c * share) / (b + 2 * c * (1 - share)) * (1 - share) / share
            score = np.where(items < 0, 0.0, np.log(odds)).sum(axis=2)
            log_factors.append(math.log(2) - np.logaddexp(0, score[:, PLAIN] - score[:, SPECULATIVE]))
        return np.array(log_factors)

    def add(self, contexts: np.ndarray, items: np.ndarray) -> None:
        for side in (PLAIN, SPECULATIVE):
            kept = items[:, side] >= 0
            np.add.at(self.items[side], items[:, side][kept], 1)
            np.add.at(self.contexts[side], contexts[:, side][kept], 1)


class _NextTokenCounts:
    """Counts of next tokens after each beginning, over both kinds of texts together."""

    def __init__(self, beginnings: np.ndarray, items: np.ndarray):
        self.beginnings, self.items = beginnings, items
        self.seen, self.of_items = np.zeros(beginnings.max(initial=0) + 1), np.zeros(items.max(initial=0) + 1)
        self.most = np.zeros_like(self.seen)

    def classes(self, part: slice) -> np.ndarray:
        """int [r, 2, L]: the class of each token of some pairs by what was added before."""
        seen, own = self.seen[self.beginnings[part]], self.of_items[self.items[part]]
        most = self.most[self.beginnings[part]]
        classes = np.where(own == most, LIKELIEST, np.where(own >= seen / 10, TENTH, RARER))
        return np.where(seen < KNOWN, 0, classes)

    def add(self, part: slice) -> None:
        np.add.at(self.seen, self.beginnings[part].ravel(), 1)
        items = self.items[part].ravel()
        np.add.at(self.of_items, items, 1)
        np.maximum.at(self.most, self.beginnings[part].ravel(), self.of_items[items])


def _feature(name: str, contexts: np.ndarray, items: np.ndarray, kept: np.ndarray) -> Feature:
    numbers = numbered(np.where(kept, contexts, -9)), numbered(np.where(kept, contexts, -9), np.where(kept, items, -9))
    return Feature(name, *(np.where(kept, column, -1) for column in numbers))


def _class_keys(classes: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Contexts and items of the two features that are made of classes: over all positions, and by position."""
    place = np.broadcast_to(np.arange(classes.shape[2]), classes.shape)
    known = classes > 0
    return [
        (np.where(known, 0, -1), np.where(known, classes, -1)),
        (np.where(known, place, -1), np.where(known, classes * classes.shape[2] + place, -1)),
    ]


def _repetitions(tokens: np.ndarray) -> np.ndarray:
    """int, as tokens: 0 a new token, 1 the end, 2 one seen earlier, 3 the one before the previous, 4 the previous."""
    kinds = np.where(tokens == END, 1, 0)
    for place in range(1, tokens.shape[2]):
        here, earlier = tokens[:, :, place], tokens[:, :, :place]
        kind = np.where((earlier == here[:, :, None]).any(axis=2), 2, 0)
        if place > 1:
            kind = np.where(earlier[:, :, -2] == here, 3, kind)
        kind = np.where(earlier[:, :, -1] == here, 4, kind)
        kinds[:, :, place] = np.where(here >= 0, kind, kinds[:, :, place])
    return kinds
