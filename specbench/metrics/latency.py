"""Times of repeated calls: medians, quantiles, and intervals that know of rounds.

A case is timed in several rounds, minutes apart and with other cases between them, many replays a round. Replays of one
round resemble one another more than those of another (clocks, neighbours, the round's own logits), so intervals come
from a bootstrap in two stages: rounds are drawn with replacement, then replays within each.
"""

from __future__ import annotations

import numpy as np

from specbench.metrics.intervals import RESAMPLES, Estimate

QUANTILES = (0.05, 0.25, 0.75, 0.95)
_AT_ONCE = 100  # resamples held side by side


def median(samples: np.ndarray, seed: int = 0) -> Estimate:
    """The median of samples [rounds, replays] with its 95% interval."""
    values = np.asarray(samples, dtype=float)
    return Estimate.of_resamples(float(np.median(values)), _resampled_medians(values, seed))


def ratio_of_medians(numerator: np.ndarray, denominator: np.ndarray, seed: int = 0) -> Estimate:
    """median / median of two cases timed apart, samples [rounds, replays] each, with its 95% interval."""
    top, bottom = np.asarray(numerator, dtype=float), np.asarray(denominator, dtype=float)
    ratios = _resampled_medians(top, seed) / _resampled_medians(bottom, seed + 1)
    return Estimate.of_resamples(float(np.median(top) / np.median(bottom)), ratios)


def _resampled_medians(samples: np.ndarray, seed: int) -> np.ndarray:
    generator = np.random.default_rng(seed)
    rounds, replays = samples.shape
    medians = []
    for _ in range(RESAMPLES // _AT_ONCE):
        chosen = generator.integers(rounds, size=(_AT_ONCE, rounds, 1))
        within = generator.integers(replays, size=(_AT_ONCE, rounds, replays))
        medians.append(np.median(samples[chosen, within], axis=(1, 2)))
    return np.concatenate(medians)
