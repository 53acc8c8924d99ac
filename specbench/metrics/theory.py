"""Closed forms of speculative decoding, to hold measurements against.

Words: alpha is the chance that a drafted token is accepted, the same for every token and independent of the others
(an idealisation: real acceptance comes in runs); gamma is the number of drafted tokens a step.

Source: Leviathan, Kalman, Matias, "Fast inference from transformers via speculative decoding" (arXiv 2211.17192),
equation 1. For token verification alpha is the overlap sum min(p, q) (corollary 3.6).
"""

import math
from collections.abc import Sequence

import numpy as np
from scipy import stats

from specbench.metrics.intervals import CONFIDENCE


def expected_tokens(alpha: float, gamma: int | np.integer) -> float:
    """Mean number of tokens a step emits: (1 - alpha^(gamma + 1)) / (1 - alpha), and gamma + 1 at alpha = 1.

    Equation 1 of arXiv 2211.17192. It is summed as the geometric series it stands for, since the quotient loses its
    digits where alpha is close to 1.
    """
    return math.fsum(alpha**accepted for accepted in range(gamma + 1))


def binomial_band(prob: float | Sequence[float] | np.ndarray, draws: int) -> tuple[np.ndarray, np.ndarray]:
    """Where the share of a token lies among ``draws`` of it with probability ``prob``, in 95% of cases.

    Quantiles of the binomial distribution, exact, divided by the draws.
    """
    tail = (1 - CONFIDENCE) / 2
    low, high = (stats.binom.ppf(quantile, draws, prob) / draws for quantile in (tail, 1 - tail))
    return np.asarray(low), np.asarray(high)
