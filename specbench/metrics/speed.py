"""How much faster speculative decoding is than plain decoding, from paired rounds, with an interval.

What is estimated is what "speedup" means to its user: tokens a second of the whole workload over the same of plain
decoding. A mean or a median of the prompts' own ratios would be another quantity, in which a short text weighs as much
as a long one. So batches are added up as times, and only over rounds, which repeat the very same work, medians are
taken:

- of each batch, the median over rounds of log(plain time / speculative time), times taken one right after the other.
  What slows both alike drops out, what hits one of the two is an outlier, and fewer than half of the rounds cannot move
  a median far. The smallest times (Chen & Revels, "Robust benchmarking in noisy environments", arXiv 1608.04295) would
  do where disturbances are rare; on a machine that is never at rest none is undisturbed, and they are no pairs;
- of each batch, the median over rounds of the logarithm of the two times' geometric mean, its weight in the workload.
  Both medians together are a time for each way, and the speedup is the ratio of the sums over batches.

The interval is Student's t on a logarithmic scale, from two sources that are added (Kalibera & Jones, "Rigorous
benchmarking in reasonable time", ISMM 2013, on levels of repetition):

- batches: other prompts would have given other texts. The scatter of log(speedup) without one batch each (Tukey's
  jackknife), in which a long batch counts for what it adds; noise of single times, which differs, is in it as well;
- rounds: what a whole round has in common is not. The scatter of the rounds, or what the scatter of single pairs lets
  one expect of it, whichever is larger: two rounds may agree by chance. Noise of single pairs is counted twice by this,
  as it is by the bootstrap that resamples rows and columns of such a table (Owen, "The pigeonhole bootstrap", Annals of
  Applied Statistics 1(2), 2007), so that intervals are rather too wide on a disturbed machine.

Degrees of freedom are Satterthwaite's. A nominal 95% holds the truth in 94% to 99% of made-up runs of 12 batches, the
more where times are noisy, and in 92% where whole rounds differ by 10% (tests/metrics/test_speed.py). It does in 27% (3
batches) to 72% (12) where a tenth of the batches is 2.5 times slower and the others are alike: many runs have none.
Of 12 batches whose lengths' logarithms have a standard deviation of 0.5, 1 or 1.5, it does in 94%, 92% or 90%.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from specbench.metrics.intervals import CONFIDENCE, Estimate

TO_SIGMA = 1.4826  # the median of absolute deviations of normal numbers, in standard deviations


@dataclass(frozen=True)
class Rounds:
    """The same batches decoded both ways in several rounds; all arrays are [rounds, batches]."""

    tokens: np.ndarray
    seconds: np.ndarray
    plain_tokens: np.ndarray
    plain_seconds: np.ndarray

    def summed(self, first: Sequence[int]) -> Rounds:
        """Returns the rounds with batches added up, from each index of ``first`` to the next, as one batch each."""
        return Rounds(*(np.add.reduceat(values, first, axis=1) for values in vars(self).values()))


@dataclass(frozen=True)
class Variance:
    """A variance that was estimated, with its degrees of freedom."""

    value: float
    freedom: float | int


@dataclass(frozen=True)
class Speed:
    """What rounds say.

    Attributes:
        tokens, seconds, plain_tokens, plain_seconds: of each batch [B]; seconds are the medians of the module.
        speedup: tokens a second over those of plain decoding; of one batch there is no interval, and its ends are NaN.
        round_error: standard error of log(speedup) by what rounds scatter; None for one round.
        plain_round_error: the same of log(plain tokens a second).
    """

    tokens: np.ndarray
    seconds: np.ndarray
    plain_tokens: np.ndarray
    plain_seconds: np.ndarray
    speedup: Estimate
    round_error: float | None
    plain_round_error: float | None


def speed_of(rounds: Rounds) -> Speed:
    """The speedup and what it is made of; see the module."""
    tokens, plain_tokens = (np.asarray(a[0], dtype=float) for a in (rounds.tokens, rounds.plain_tokens))
    # Seconds a token, since a verifier with randomness of its own may write another text in each round.
    own, plain = np.log(rounds.seconds / rounds.tokens), np.log(rounds.plain_seconds / rounds.plain_tokens)
    gain, level = np.median(plain - own, axis=0), np.median((plain + own) / 2, axis=0)
    seconds, plain_seconds = tokens * np.exp(level - gain / 2), plain_tokens * np.exp(level + gain / 2)
    value = (tokens.sum() / seconds.sum()) / (plain_tokens.sum() / plain_seconds.sum())
    count, batches = own.shape
    several = count > 1
    error = round_error(plain - own) if several else None
    estimate = Estimate(float(value), math.nan, math.nan)
    if batches > 1:
        variances = [batch_variance(parts(tokens, seconds, plain_tokens, plain_seconds))]
        variances += [Variance(error**2, count - 1)] if error is not None else []
        half = half_width(variances)
        estimate = Estimate(float(value), float(value * np.exp(-half)), float(value * np.exp(half)))
    return Speed(tokens, seconds, plain_tokens, plain_seconds, estimate, error, round_error(plain) if several else None)


def parts(tokens: np.ndarray, seconds: np.ndarray, plain_tokens: np.ndarray, plain_seconds: np.ndarray) -> np.ndarray:
    """Each batch's part [B] in the scatter of log(speedup): by how much it falls without the batch (the jackknife)."""
    shares = [np.asarray(a, dtype=float) / np.sum(a) for a in (tokens, seconds, plain_tokens, plain_seconds)]
    left = [np.log1p(-share.clip(max=1 - 1e-12)) for share in shares]  # clipped: without the only one nothing is left
    return left[1] - left[0] + left[2] - left[3]


def batch_variance(part: np.ndarray) -> Variance:
    """The variance of a sum of parts (or of differences of parts) of batches, at least two of them."""
    count = len(part)
    return Variance(float((count - 1) / count * np.square(part).sum()), count - 1)


def round_error(values: np.ndarray) -> float:
    """Standard error of a mean over rounds and batches by the scatter of rounds, at least two of them.

    Args:
        values: logarithms [rounds, batches]; each batch has a level of its own.
    """
    rounds, batches = values.shape
    residuals = values - values.mean(axis=0)
    shared = np.median(residuals, axis=1).std(ddof=1) / np.sqrt(rounds)  # what whole rounds have in common
    # A median of two is their mean, which an outlier moves; a median of more is not moved, so it should not widen this.
    spread = np.sqrt(np.mean(residuals**2)) if rounds == 2 else TO_SIGMA * np.median(np.abs(residuals))
    single = spread * np.sqrt(rounds / (rounds - 1)) / np.sqrt(rounds * batches)
    return float(max(shared, single))


def half_width(variances: Sequence[Variance], tail: float = (1 - CONFIDENCE) / 2) -> float:
    """How far a sum of independent normal errors reaches, on each side with the probability ``tail`` to lie beyond."""
    total = sum(variance.value for variance in variances)
    if total == 0:
        return 0.0
    freedom = total**2 / sum(variance.value**2 / variance.freedom for variance in variances if variance.value)
    return float(stats.t.ppf(1 - tail, freedom) * np.sqrt(total))
