"""How far apart the two ways can be in the probabilities of their tokens, and how much entropy their texts have.

Every token belongs to a class by its estimated probability: the likeliest after what precedes it, another of at least
0.1, or a rarer one (:mod:`.bets`, from earlier pairs alone). So a bound is on the classes as they were guessed for each
pair before it was seen, in the mean over pairs. The total variation between the two ways' shares of the classes is a
lower bound of the bias a token: what moves probability within a class, it does not see.
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy import stats

from specbench.exactness.two_sample.bets import CLASSES, BetResults
from specbench.exactness.two_sample.pairs import BEHIND, KNOWN, PLAIN, SPECULATIVE, TextPairs, numbered

ALL = "all"
FEWEST = 50  # classified tokens of each way, below which nothing is said


@dataclass(frozen=True)
class BiasRow:
    """The difference of the ways in a part of the tokens.

    Attributes:
        prompt: its name, or "all".
        position: of the token in the text, from 1; None for all positions.
        classified: the share of tokens whose class is known, because enough earlier texts begin likewise.
        entropy: nats a token, of both ways together, where enough texts begin likewise; None where none do.
        observed: total variation between the shares of the classes, noise included; None of too few tokens.
        bound: above the true one at the stated confidence, for this row alone; None of too few tokens.
    """

    prompt: str
    position: int | None
    pairs: int
    classified: float
    entropy: float | None
    observed: float | None
    bound: float | None


def bias_rows(pairs: TextPairs, evidence: BetResults, prompts: list[str], confidence: float) -> list[BiasRow]:
    """Rows for all tokens, for each position and for each prompt.

    Args:
        prompts: the name of each number of ``pairs.prompts``.
    """
    nats = token_entropies(pairs)

    def row(prompt: str, position: int | None, kept: np.ndarray, places: slice) -> BiasRow:
        classes, there = evidence.classes[kept][:, :, places], pairs.tokens[kept][:, :, places] != BEHIND
        observed, bound = class_bias(classes, confidence)
        some = nats[kept][:, :, places]
        entropy = float(np.nanmean(some)) if np.isfinite(some).any() else None
        classified = float((classes > 0).sum() / max(there.sum(), 1))
        return BiasRow(prompt, position, len(classes), classified, entropy, observed, bound)

    all_pairs = np.ones(len(pairs.prompts), dtype=bool)
    rows = [row(ALL, None, all_pairs, slice(None))]
    rows += [row(ALL, place + 1, all_pairs, slice(place, place + 1)) for place in range(pairs.length)]
    return rows + [row(name, None, pairs.prompts == number, slice(None)) for number, name in enumerate(prompts)]


def class_bias(classes: np.ndarray, confidence: float) -> tuple[float, float] | tuple[None, None]:
    """Total variation between the ways' shares of the classes, and an upper bound on it; None of too few tokens.

    It is the largest difference in the share of any set of classes. Of each set and its complement, Student's interval
    over pairs of texts holds a part of the doubt (Bonferroni), since tokens of one text depend on each other.

    Args:
        classes: int [r, 2, L], 0 where no class is known.
    """
    counts = np.stack([(classes == kind).sum(axis=2) for kind in CLASSES])  # [classes, r, 2]
    # Whether a class is known is no difference in probabilities: each way's shares are of its own classified tokens.
    totals = (classes > 0).sum(axis=(0, 2))
    if totals.min() < FEWEST:
        return None, None
    shares = counts.sum(axis=1) / totals
    observed = float(np.abs(shares[:, SPECULATIVE] - shares[:, PLAIN]).sum() / 2)
    if len(classes) < 2:  # whose spread nothing shows
        return observed, 1.0
    quantile = float(stats.t.isf((1 - confidence) / (2 * len(CLASSES)), len(classes) - 1))
    bounds = []
    for number in range(len(CLASSES)):  # of three classes every set or its complement is one class
        parts = (counts[number] - shares[number] * (classes > 0).sum(axis=2)) / totals
        spread = math.sqrt(len(classes) * float((parts[:, SPECULATIVE] - parts[:, PLAIN]).var(ddof=1)))
        bounds.append(abs(shares[number, SPECULATIVE] - shares[number, PLAIN]) + quantile * spread)
    # A difference of few texts as a whole need not show in any of them. In some, Student's interval alone is too short.
    texts = (classes > 0).any(axis=2).sum(axis=0)
    unseen = -math.log(1 - confidence) / texts.min()
    return observed, float(min(1.0, max(bounds) + unseen))


def token_entropies(pairs: TextPairs) -> np.ndarray:
    """float [R, 2, L]: nats of the distribution of each token, NaN where fewer than KNOWN texts begin likewise.

    Entropies of counts, with the correction of Miller and Madow: (distinct tokens - 1) / (2 x texts).
    """
    beginnings = numbered(pairs.beginnings)
    items = numbered(beginnings, pairs.tokens)
    there = pairs.tokens != BEHIND
    of_item, of_beginning = np.bincount(items[there]), np.bincount(beginnings[there], minlength=beginnings.max() + 1)
    owner = np.zeros(len(of_item), dtype=np.int64)
    owner[items[there]] = beginnings[there]
    share = of_item / np.maximum(of_beginning[owner], 1)
    terms = np.where(of_item > 0, -share * np.log(np.maximum(share, 1e-300)), 0.0)
    entropy = np.bincount(owner[of_item > 0], terms[of_item > 0], minlength=len(of_beginning))
    distinct = np.bincount(owner[of_item > 0], minlength=len(of_beginning))
    entropy += np.maximum(distinct - 1, 0) / (2 * np.maximum(of_beginning, 1))
    return np.where(there & (of_beginning[beginnings] >= KNOWN), entropy[beginnings], np.nan)
