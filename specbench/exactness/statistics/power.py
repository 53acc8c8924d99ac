"""What a test could have seen in a number of draws, and how far from the target a verifier can still be.

The G statistic of a step (g_tests.node_g_test) is asymptotically noncentral chi-square with noncentrality 2 N KL, where
KL is the divergence, a step, of what is emitted from what the target would emit in its place. A step completed with
target samples to gamma + 1 tokens is a function of what is emitted and of noise, so by the data-processing inequality
and Pinsker's its total variation TV from the target's joint satisfies KL >= 2 TV^2, and the noncentrality is at least
N (2 TV)^2: a lower bound whatever the mistake looks like.
"""

import math
from collections.abc import Callable, Mapping

import numpy as np
from scipy import optimize, stats

CONFIDENCE = 0.99  # of upper bounds


def needed_noncentrality(dof: int, power: float, false_alarm: float) -> float:
    """The noncentrality that a chi-square test sees with probability ``power``; 0 if its false alarm is no less."""
    if power <= false_alarm:
        return 0.0
    critical = stats.chi2.isf(false_alarm, dof)
    return _root(lambda noncentrality: stats.ncx2.sf(critical, dof, noncentrality) - power)


def _root(increasing: Callable[[float], float]) -> float:
    """Returns where a function crosses 0 that is not above 0 at 0."""
    high = 1.0
    while increasing(high) < 0:
        high *= 2
    return float(optimize.brentq(increasing, 0, high))


def share_at_most(failures: float | int, trials: int, alpha: float) -> float:
    """Upper bound on a probability by Clopper and Pearson, wrong with probability alpha at most."""
    return float(stats.beta.isf(alpha, failures + 1, max(trials - failures, 1e-9)))


def mean_at_most(shares: Mapping[float, int], count: int, alpha: float, seed: int) -> float:
    """Upper bound on the mean of a quantity from 0 to 1, wrong with probability alpha at most.

    Each value is rounded to 1 with a probability of the value itself, else to 0. The ones have the same mean, and are
    counted: values that are small, or almost always 0, get no larger bound than their mean asks for.

    Args:
        shares: how often each value other than 0 was drawn.
        count: of independent draws, those of 0 included.
        seed: of the rounding, the run's own: if the values chose it, some of them would have a wrong bound every time.
    """
    rounding = np.random.default_rng([seed, count])
    ones = sum(int(rounding.binomial(times, share)) for share, times in sorted(shares.items()))
    return share_at_most(ones, count, alpha)


def detectable_tv(draws: int, dof: int, power: float, false_alarm: float) -> float:
    """The smallest total variation that ``draws`` steps show with probability ``power``, at most 1."""
    return min(1.0, 0.5 * math.sqrt(needed_noncentrality(dof, power, false_alarm) / draws))


def tv_upper_bound(
    statistic: float, dof: int, draws: int, confidence: float = CONFIDENCE, untested: float = 0.0
) -> float:
    """An upper confidence bound on the total variation a step: noncentralities above it would have shown more.

    The noncentrality at which a statistic as small as the one seen has probability 1 - confidence, and, with half of
    the doubt, the probability of what the test does not tell apart.

    Args:
        untested: tokens of the draws in cells that are too rare to be tested.
    """
    if untested >= draws:
        return 1.0
    tail, hidden = 1 - confidence, 0.0
    if untested:
        tail /= 2
        hidden = share_at_most(untested, draws, tail)
    # A statistic smaller than its median says nothing more, and a bound near 0 would be an accident's.
    statistic = max(statistic, float(stats.chi2.ppf(0.5, dof)))
    noncentrality = _root(lambda noncentrality: tail - stats.ncx2.cdf(statistic, dof, noncentrality))
    return min(1.0, hidden + 0.5 * math.sqrt(max(noncentrality, 0.0) / draws))
