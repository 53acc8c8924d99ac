"""Anytime-valid evidence: a bet against the target that can be watched token by token.

If every emitted token follows the target given the text before it, M = prod f(y)/p(y) is a nonnegative martingale from
1 for any f that is fixed before the token is seen, and by Ville's inequality it ever reaches 1/a with probability at
most a. No binning, no sample size, and the prefixes of real texts pool although no two have the same distribution
(Ramdas et al., "Game-theoretic statistics and safe anytime-valid inference", arXiv 2210.01948).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

MIXED = (0.01, 0.03, 0.1, 0.3)  # shares of the other distribution
TEMPERED = (0.7, 0.85, 0.95, 1.05, 1.15, 1.4)  # exponents


@dataclass(frozen=True)
class TokenEvidence:
    """What the bets need to know about one emitted token.

    Attributes:
        log_p, log_q: its log-probability under target and draft; log_q is None where the draft had no rows.
        top: whether it is the target's argmax.
        log_tempered: log of sum over x of p(x)^a for a in TEMPERED.
        bonus: whether it came after a block that was accepted whole; known before it is drawn.
    """

    log_p: float
    log_q: float | None
    top: bool
    log_tempered: tuple[float, ...]
    bonus: bool


def bets() -> list[str]:
    """The names of the bets, in the order of :func:`log_factors`."""
    names = [f"draft {share:g}" for share in MIXED]
    names += [f"argmax {share:g}" for share in MIXED]
    names += [f"bonus argmax {share:g}" for share in MIXED]
    names += [f"power {exponent:g}" for exponent in TEMPERED]
    return [*names, *(f"bonus power {exponent:g}" for exponent in TEMPERED)]


def log_factors(token: TokenEvidence) -> list[float]:
    """log f(y)/p(y) of every bet; +inf where the target gives the token probability 0."""
    if token.log_p == -math.inf:
        return [math.inf] * len(bets())
    ratio = 1.0 if token.log_q is None else math.exp(min(token.log_q - token.log_p, 700.0))
    argmax = math.exp(-token.log_p) if token.top else 0.0
    towards_draft = [math.log1p(share * (ratio - 1)) for share in MIXED]
    towards_argmax = [math.log1p(share * (argmax - 1)) for share in MIXED]
    tempered = [
        (exponent - 1) * token.log_p - log_sum for exponent, log_sum in zip(TEMPERED, token.log_tempered, strict=True)
    ]
    only_bonus = float(token.bonus)
    return [
        *towards_draft,
        *towards_argmax,
        *(only_bonus * each for each in towards_argmax),
        *tempered,
        *(only_bonus * each for each in tempered),
    ]


def paths(factors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """log M after every token, [n], of all bets with equal stakes, and of each alone, [n, bets]."""
    each = np.cumsum(factors, axis=0)
    return np.logaddexp.reduce(each, axis=1) - math.log(each.shape[1]), each


def e_value(log_path: np.ndarray) -> float:
    """The largest value of M, log10; 1/M is a valid p-value however often one looked."""
    return float(max(log_path.max(initial=0.0), 0.0) / math.log(10))
