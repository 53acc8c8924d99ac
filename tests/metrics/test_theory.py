"""Closed forms against enumeration, exact arithmetic and their limits."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from specbench.metrics import theory

ALPHAS = [0.0, 0.1, 0.5, 0.77, 0.999, 1.0]


def enumerated_tokens(alpha: float, gamma: int) -> float:
    """The mean over all patterns of accepted and rejected tokens of the accepted prefix, and one token after it."""
    total = 0.0
    for pattern in itertools.product((True, False), repeat=gamma):
        accepted = next((i for i, kept in enumerate(pattern) if not kept), gamma)
        total += (accepted + 1) * np.prod([alpha if kept else 1 - alpha for kept in pattern])
    return total


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("gamma", [0, 1, 2, 5, 8])
def test_tokens_are_the_mean_over_all_patterns(alpha: float, gamma: int) -> None:
    assert theory.expected_tokens(alpha, gamma) == pytest.approx(enumerated_tokens(alpha, gamma), rel=1e-12)


@pytest.mark.parametrize("alpha", [1 - 1e-6, 1 - 1e-12, 1 - 2**-53])
def test_tokens_keep_their_digits_near_certain_acceptance(alpha: float) -> None:
    exact = Fraction(alpha)
    expected = float((1 - exact**65) / (1 - exact))
    assert theory.expected_tokens(alpha, 64) == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize("prob", [1e-9, 0.003, 0.3, 0.5, 0.98])
@pytest.mark.parametrize("draws", [1, 64, 512])
def test_the_band_holds_95_percent_and_no_more_than_it_must(prob: float, draws: int) -> None:
    low, high = (np.rint(share * draws) for share in theory.binomial_band(prob, draws))
    assert stats.binom.cdf(high, draws, prob) - stats.binom.cdf(low - 1, draws, prob) >= 0.95
    assert stats.binom.cdf(low - 1, draws, prob) < 0.025 <= stats.binom.cdf(low, draws, prob)
    assert stats.binom.cdf(high - 1, draws, prob) < 0.975 <= stats.binom.cdf(high, draws, prob)


def test_the_band_of_certain_and_forbidden_tokens_is_a_point() -> None:
    low, high = theory.binomial_band([0.0, 1.0], 512)
    assert low.tolist() == high.tolist() == [0.0, 1.0]
