"""Intervals by bootstrap over prompts: tokens of one text are dependent, texts are not."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import stats

CONFIDENCE = 0.95
RESAMPLES = 2000


@dataclass(frozen=True)
class Estimate:
    """A number and its 95% interval; with fewer than two units of resampling the interval is the number itself."""

    value: float
    low: float
    high: float


def ratio_of_sums(numerator: np.ndarray, denominator: np.ndarray, seed: int = 0) -> Estimate | None:
    """sum(numerator) / sum(denominator) over units (prompts), percentile bootstrap; None where nothing was counted."""
    top, bottom = np.asarray(numerator, dtype=float), np.asarray(denominator, dtype=float)
    if bottom.sum() == 0:
        return None
    # Units that count nothing (a prompt with no draft) could fill a whole resample and divide by zero.
    top, bottom = top[bottom > 0], bottom[bottom > 0]
    value = top.sum() / bottom.sum()
    if len(top) < 2:
        return Estimate(value, value, value)
    return _bootstrap((top, bottom), lambda n, d, axis: n.sum(axis) / d.sum(axis), value, seed)


def speedup(
    tokens: np.ndarray, seconds: np.ndarray, plain_tokens: np.ndarray, plain_seconds: np.ndarray, seed: int = 0
) -> Estimate:
    """(tokens / seconds) / (plain_tokens / plain_seconds) over units that were timed both ways side by side."""
    arrays = tuple(np.asarray(a, dtype=float) for a in (tokens, seconds, plain_tokens, plain_seconds))

    def ratio(t: np.ndarray, s: np.ndarray, pt: np.ndarray, ps: np.ndarray, axis: int = -1) -> np.ndarray | np.floating:
        return (t.sum(axis) / s.sum(axis)) / (pt.sum(axis) / ps.sum(axis))

    value = float(ratio(arrays[0], arrays[1], arrays[2], arrays[3]))
    if len(arrays[0]) < 2:
        return Estimate(value, value, value)
    return _bootstrap(arrays, ratio, value, seed)


def _bootstrap(data: tuple[np.ndarray, ...], statistic: object, value: float, seed: int) -> Estimate:
    result = stats.bootstrap(
        data,
        statistic,
        paired=True,
        vectorized=True,
        n_resamples=RESAMPLES,
        confidence_level=CONFIDENCE,
        method="percentile",
        rng=np.random.default_rng(seed),
    )
    interval = result.confidence_interval
    return Estimate(float(value), float(interval.low), float(interval.high))
