"""Closed forms of speculative decoding, to hold measurements against.

Words: alpha is the chance that a drafted token is accepted, the same for every token and independent of the others
(an idealisation: real acceptance comes in runs); gamma is the number of drafted tokens a step; the cost ratio c is the
time of drafting one token over the time of decoding one token plainly.

Source: Leviathan, Kalman, Matias, "Fast inference from transformers via speculative decoding" (arXiv 2211.17192),
equation 1 and theorem 3.8. For token verification alpha is the overlap sum min(p, q) (corollary 3.6). Block
verification: Sun et al., arXiv 2403.10444.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Integral

import numpy as np
from scipy import stats

from specbench.errors import ArgumentError


def expected_tokens(alpha: float, gamma: int | np.integer) -> float:
    """Mean number of tokens a step emits: (1 - alpha^(gamma + 1)) / (1 - alpha), and gamma + 1 at alpha = 1.

    Equation 1 of arXiv 2211.17192. It is summed as the geometric series it stands for, since the quotient loses its
    digits where alpha is close to 1.

    Raises:
        ArgumentError: alpha outside [0, 1], or a gamma that is no whole number from 0.
    """
    _check_alpha(alpha)
    _check_gamma("gamma", gamma)
    return math.fsum(alpha**accepted for accepted in range(int(gamma) + 1))


def expected_speedup(alpha: float, gamma: int | np.integer, cost_ratio: float) -> float:
    """Expected tokens over the step's cost gamma * c + 1: theorem 3.8 of arXiv 2211.17192.

    Scoring a block is taken to cost as much as one plain step, and verifying nothing.

    Raises:
        ArgumentError: as expected_tokens, or a cost ratio that is negative or not finite.
    """
    _check_cost_ratio(cost_ratio)
    return expected_tokens(alpha, gamma) / (gamma * cost_ratio + 1)


def best_gamma(alpha: float, cost_ratio: float, largest: int = 64) -> int:
    """The gamma from 0 to ``largest`` of the highest expected speedup, the smallest one on ties; 0: do not speculate.

    Raises:
        ArgumentError: as expected_speedup, or a ``largest`` that is no whole number from 0.
    """
    _check_gamma("largest", largest)
    return max(range(int(largest) + 1), key=lambda gamma: expected_speedup(alpha, gamma, cost_ratio))


def variance_of_tokens(alpha: float, gamma: int | np.integer) -> float:
    """Variance of the number of tokens a step emits: sum of (2k + 1) alpha^k over k = 0..gamma, less the squared mean.

    Raises:
        ArgumentError: as expected_tokens.
    """
    mean = expected_tokens(alpha, gamma)
    return math.fsum((2 * k + 1) * alpha**k for k in range(int(gamma) + 1)) - mean**2


def expected_tokens_by_position(rates: Sequence[float] | np.ndarray) -> float:
    """Mean tokens a step where position i is accepted with rate a_i once its predecessors were: 1 + sum_i a_1...a_i.

    Args:
        rates: the conditional rates of positions 1..gamma.

    Raises:
        ArgumentError: a rate outside [0, 1].
    """
    for rate in rates:
        _check_alpha(float(rate))
    return 1 + float(np.cumprod(np.asarray(rates, dtype=float)).sum())


def best_gamma_by_position(rates: Sequence[float] | np.ndarray, cost_ratio: float) -> int:
    """The gamma from 0 to len(rates) of the highest expected speedup, the smallest one on ties.

    Where rates do not rise, it is where adding a token stops to pay, A_(g+1) (g c + 1) <= c E_g with A_i = a_1...a_i;
    rates of long drafts may rise (what is easy goes on), so every gamma is tried.

    Raises:
        ArgumentError: as expected_tokens_by_position, or a cost ratio that is negative or not finite.
    """
    _check_cost_ratio(cost_ratio)
    speedups = [
        expected_tokens_by_position(rates[:gamma]) / (gamma * cost_ratio + 1) for gamma in range(len(rates) + 1)
    ]
    return max(range(len(speedups)), key=speedups.__getitem__)


def overlap(p: np.ndarray, q: np.ndarray) -> float:
    """sum of min(p, q), which is 1 - TV: no lossless rule accepts a draft from q more often.

    For one token these are the rows of a vocabulary, and token verification attains it. For i tokens they are the
    probabilities of all sequences of i tokens; their overlaps, summed over i = 1..gamma, bound the number of accepted
    tokens of any rule, and block verification lies between that and the token rule.

    Raises:
        ArgumentError: different shapes, or rows that are no distributions.
    """
    if p.shape != q.shape:
        raise ArgumentError(f"q: shape {q.shape}, but p has {p.shape}")
    for name, row in (("p", p), ("q", q)):
        if (row < 0).any() or not math.isclose(float(row.sum()), 1, abs_tol=1e-6):
            raise ArgumentError(f"{name}: not a distribution (its sum is {float(row.sum())})")
    return float(np.minimum(p, q).sum())


def block_tokens(log_ratios: np.ndarray) -> float:
    """Mean tokens a step of block verification: 1 + E[sum_i pi_i], pi_i = min(1, pi_(i-1) p / q), over drafted blocks.

    Args:
        log_ratios: log p - log q [blocks, gamma] of tokens that the draft sampled (not those of a text: for these see
            specbench.replay).

    Raises:
        ArgumentError: NaN among the ratios.
    """
    if np.isnan(log_ratios).any():
        raise ArgumentError("log_ratios: NaN among them")
    log_pi, total = np.zeros(len(log_ratios)), np.zeros(len(log_ratios))
    for column in log_ratios.T:
        log_pi = np.minimum(0, log_pi + column)
        total += np.exp(log_pi)
    return 1 + float(total.mean())


def binomial_band(
    prob: float | Sequence[float] | np.ndarray, draws: int, confidence: float = 0.95
) -> tuple[np.ndarray, np.ndarray]:
    """Where the share of a token lies among ``draws`` of it with probability ``prob``, but for ``1 - confidence``.

    Quantiles of the binomial distribution, exact, divided by the draws.

    Raises:
        ArgumentError: probabilities outside [0, 1], fewer than 1 draw, or a confidence not inside (0, 1).
    """
    probs = np.asarray(prob, dtype=float)
    if not ((probs >= 0) & (probs <= 1)).all():
        raise ArgumentError("prob: must lie in [0, 1]")
    if draws < 1:
        raise ArgumentError(f"draws={draws}: must be at least 1")
    if not 0 < confidence < 1:
        raise ArgumentError(f"confidence={confidence}: must lie inside (0, 1)")
    tail = (1 - confidence) / 2
    low, high = (stats.binom.ppf(quantile, draws, probs) / draws for quantile in (tail, 1 - tail))
    return np.asarray(low), np.asarray(high)


def _check_alpha(alpha: float) -> None:
    if not 0 <= alpha <= 1:
        raise ArgumentError(f"alpha={alpha}: must lie in [0, 1]")


def _check_cost_ratio(cost_ratio: float) -> None:
    if not (math.isfinite(cost_ratio) and cost_ratio >= 0):
        raise ArgumentError(f"cost_ratio={cost_ratio}: must be finite and not negative")


def _check_gamma(name: str, gamma: object) -> None:
    if isinstance(gamma, bool) or not isinstance(gamma, Integral) or gamma < 0:
        raise ArgumentError(f"{name}={gamma}: must be a whole number from 0")
