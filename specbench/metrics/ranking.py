"""Which of several settings is the fastest, and whether the data can tell.

The highest of many noisy speedups is high by luck as well, so it is called the fastest only if it is shown to be faster
than every other. Each comparison is a one-sided Student's t at the level 5% / number of settings. Take one of the
settings that are truly the fastest: any other is wrongly shown to be faster than it with a probability below 5% in all,
by Bonferroni. So it is among those that are not ruled out in 95% of sweeps, and a setting that is not the fastest, or
only one of several equals, is called the fastest in at most 5%. (That comparisons with the best suffice: Hsu,
"Constrained simultaneous confidence intervals for multiple comparisons with the best", Annals of Statistics 12, 1984.)

A difference of log(speedup) has three sources of error, which are added:

- batches. Runs of a sweep decode the same prompts, so that differences are taken batch by batch, and what makes a
  prompt fast in both runs drops out. (Batches that have nothing in common are independent, which costs nothing.)
- rounds, of each run (specbench.metrics.speed).
- the machine. Runs follow one another, and a machine that changes in between favours some of them. How much it changes
  is seen in plain decoding, the same work in every run: the scatter of its speed over runs is taken for the error that
  each speedup has from this source. A speedup is over the plain decoding beside it, so that most of a change drops
  out; the whole is taken all the same, since nothing says how much.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import stats

from specbench.metrics.disturbance import Disturbance, is_disturbed
from specbench.metrics.intervals import CONFIDENCE
from specbench.metrics.run_settings import plain_work_columns, with_settings
from specbench.metrics.speed import Variance, batch_variance, half_width, parts

FALSE_NAME = 1 - CONFIDENCE  # how often a setting that is not the only fastest one may be called that
CHANGED = 0.01  # the p-value below which plain decoding is said to have changed from run to run
BATCHES = ("batch_tokens", "batch_seconds", "batch_plain_tokens", "batch_plain_seconds")


@dataclass(frozen=True)
class Ranking:
    """How the settings of a sweep compare; places are those of their rows.

    Attributes:
        best: of the highest speedup.
        rivals: of all others that are not shown to be slower than it.
        pays: of those that are shown to be faster than plain decoding, all of them together.
        disturbed: whether the machine was while any of them was timed.
        drift: how much plain decoding changed from run to run; None where no two have it in common.
    """

    best: int
    rivals: list[int]
    pays: list[int]
    disturbed: bool
    drift: Variance | None

    @property
    def fastest(self) -> int | None:
        """The setting that is shown to be the fastest; None where none is, or on a machine that was disturbed."""
        return None if self.rivals or self.disturbed else self.best


def ranking(rows: pd.DataFrame) -> Ranking:
    """Compares rows of results.RunRow, one a setting; see the module."""
    best = int(np.argmax(rows["speedup"].to_numpy(dtype=float)))
    settings = [_Setting.of(row) for _, row in rows.iterrows()]
    drift, tail = plain_drift(rows), FALSE_NAME / len(rows)
    others = [place for place in range(len(rows)) if place != best]
    return Ranking(
        best,
        [place for place in others if not _slower(settings[place], settings[best], drift, tail)],
        [place for place, one in enumerate(settings) if one.pays(tail)],
        any(map(is_disturbed, seen(rows))),
        drift,
    )


def seen(rows: pd.DataFrame) -> list[Disturbance]:
    """What rows of results.RunRow say of other processes."""
    columns = rows[["cores", "other_cores", "waited"]].astype(object)
    return [Disturbance(*row) for row in columns.where(columns.notna(), None).itertuples(index=False)]


def plain_drift(rows: pd.DataFrame) -> Variance | None:
    """The variance of log(plain tokens a second) over runs of the same plain work; None where no two have it."""
    return _scatter(rows, texts=False)


def plain_changed(rows: pd.DataFrame) -> bool:
    """Whether plain decoding of the same texts differs from run to run by more than rounds of single runs explain."""
    errors, rounds = (rows[name].astype(float) for name in ("plain_round_error", "rounds"))
    known = errors > 0
    found = _scatter(rows[known], texts=True)
    if found is None:
        return False
    own = Variance(float((errors[known] ** 2).mean()), float((rounds[known] - 1).sum()))
    return bool(stats.f.sf(found.value / own.value, found.freedom, own.freedom) < CHANGED)


def _scatter(rows: pd.DataFrame, texts: bool) -> Variance | None:
    """The variance of log(plain tokens a second) within runs of the same plain work, or of the same plain texts."""
    rows = with_settings(rows)
    # Texts of another file under the same name of a workload have other lengths.
    columns = [*plain_work_columns(rows, texts), *(["batch_plain_tokens"] if texts else [])]
    speeds = np.log(rows["plain_tokens_per_second"].astype(float))
    works = speeds.groupby([rows[name].map(_key) for name in columns], dropna=False)
    freedom = len(speeds) - works.ngroups
    return Variance(float(((speeds - works.transform("mean")) ** 2).sum() / freedom), freedom) if freedom else None


def _key(value: object) -> str:
    """A cell as what rows are grouped by; lists, which pandas cannot group by, are arrays in rows that were read."""
    return str(list(value)) if isinstance(value, Sequence | np.ndarray) and not isinstance(value, str) else str(value)


@dataclass(frozen=True)
class _Setting:
    """log(speedup), the parts of its batches (none where they are not known, or one), and its variance from rounds."""

    gain: float
    part: np.ndarray
    rounds: list[Variance]

    @staticmethod
    def of(row: pd.Series) -> _Setting:
        error, held = row["round_error"], [row[name] for name in BATCHES]
        known = all(isinstance(each, Sequence | np.ndarray) and len(each) > 1 for each in held)
        return _Setting(
            float(np.log(row["speedup"])),
            parts(*map(np.asarray, held)) if known else np.zeros(0),
            [Variance(float(error) ** 2, float(row["rounds"]) - 1)] if pd.notna(error) and error > 0 else [],
        )

    def pays(self, tail: float) -> bool:
        return len(self.part) > 0 and self.gain > half_width([batch_variance(self.part), *self.rounds], tail)


def _slower(one: _Setting, best: _Setting, drift: Variance | None, tail: float) -> bool:
    """Whether a setting is shown to be slower than the one of the highest speedup."""
    if not len(one.part) or not len(best.part):
        return False
    batches = [one.part - best.part] if len(one.part) == len(best.part) else [one.part, best.part]
    machine = [] if drift is None else [Variance(2 * drift.value, drift.freedom)]
    variances = [*map(batch_variance, batches), *one.rounds, *best.rounds, *machine]
    return best.gain - one.gain > half_width(variances, tail)
