"""Which of several settings is the fastest, and whether the data can tell.

The highest of many noisy speedups is high by luck as well, so it is called the fastest only if it is shown to be faster
than every other. Each comparison is a one-sided Student's t at the level 5% / number of settings. Take one of the
settings that are truly the fastest: any other is wrongly shown to be faster than it with a probability below 5% in all,
by Bonferroni. So it is among the settings not ruled out in 95% of sweeps, and a setting that is not the fastest, or
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

Runs in shared rounds (protocols/together.py) decode each batch one right after the other. A change of the machine meets
all of them, so that this source drops out, and two runs are compared over the batches that both have decoded. They are
compared again and again while rounds go on, and a run that is shown to be slower than any other ends there. Look number
j may err with 1 / (j (j + 1)) of the level, which adds up to the level over all looks (alpha spending: Lan & DeMets,
"Discrete sequential boundaries for clinical trials", Biometrika 70, 1983).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from scipy import stats

from specbench.core.errors import ArgumentError
from specbench.metrics.disturbance import Disturbance, is_disturbed
from specbench.metrics.intervals import CONFIDENCE
from specbench.metrics.run_settings import plain_work_columns, with_settings
from specbench.metrics.speed import Variance, batch_variance, half_width, parts

FALSE_NAME = 1 - CONFIDENCE  # how often a setting that is not the only fastest one may be called that
CHANGED = 0.01  # the p-value below which plain decoding is said to have changed from run to run
TIE = 0.05  # settings within 5% of the fastest are as fast, for those who look for one to use
BATCHES = ("batch_tokens", "batch_seconds", "batch_plain_tokens", "batch_plain_seconds")


@dataclass(frozen=True)
class Ranking:
    """How the settings of a sweep compare; places are those of their rows.

    Attributes:
        best: of the highest speedup.
        rivals: of all others that are not shown to be slower than it.
        tied: of the rivals that are shown to be within TIE of it; shared rounds alone look for that.
        pays: the settings shown to be faster than plain decoding, all of them together.
        disturbed: whether the machine was while any of them was timed.
        drift: how much plain decoding changed from run to run; None where no two have it in common.
    """

    best: int
    rivals: list[int]
    tied: list[int]
    pays: list[int]
    disturbed: bool
    drift: Variance | None

    @property
    def fastest(self) -> int | None:
        """The setting that is shown to be the fastest; None where none is, or on a machine that was disturbed."""
        return None if self.rivals or self.disturbed else self.best


def ranking(rows: pd.DataFrame) -> Ranking:
    """Compares rows of results.RunRow, one a setting; see the module. Rows without a speedup are left out.

    Raises:
        ArgumentError: no row has a speedup.
    """
    speedups = rows["speedup"].to_numpy(dtype=float)
    timed = np.flatnonzero(~np.isnan(speedups)).tolist()
    if not timed:
        raise ArgumentError("rows: none has a speedup. Give rows of protocol=decode.")
    settings = {place: SettingTimes.of(rows.iloc[place]) for place in timed}
    drift, level = _scatter(rows.iloc[timed], texts=False), FALSE_NAME / len(timed)
    # The speedup of a setting that ended early is over the first batches alone, which may be easy ones.
    beaten = _beaten(settings, level)
    best = max((place for place in timed if place not in beaten), key=lambda place: speedups[place])
    others = [place for place in timed if place != best and place not in beaten]
    rivals = [place for place in others if not _slower(settings[place], settings[best], drift, level)]
    return Ranking(
        best,
        rivals,
        [place for place in rivals if _tied(settings[place], settings[best], level)],
        [place for place, one in settings.items() if one.pays(level)],
        any(map(is_disturbed, seen(rows))),
        drift,
    )


@dataclass(frozen=True)
class Standing:
    """How settings in shared rounds compare so far.

    Attributes:
        active: jobs that are not shown to be slower than another.
        looks: by job, the number of its last look.
        best: of the active, the one of the highest speedup; None before the first look.
        tied: whether all other active ones are shown to be within TIE of it.
    """

    active: list[int]
    looks: dict[int, int] = field(default_factory=dict)
    best: int | None = None
    tied: bool = False


def race(batches: Mapping[int, np.ndarray], counts: Sequence[int], among: int) -> Standing:
    """Compares settings in shared rounds, again and again.

    Args:
        batches: by job, the columns BATCHES [4, rounds]; of fewer rounds if it was beaten at an earlier look.
        counts: the rounds before each look.
        among: settings that began.
    """
    standing, level = Standing(list(batches)), FALSE_NAME / among
    for number, count in enumerate(counts, 1):
        settings = {job: SettingTimes.shared(batches[job][:, :count], number, 0) for job in standing.active}
        beaten = _beaten(settings, level)
        active = [job for job in settings if job not in beaten]
        best = max(active, key=lambda job: settings[job].gain)
        tied = all(_tied(settings[job], settings[best], level) for job in active if job != best)
        standing = Standing(active, standing.looks | dict.fromkeys(settings, number), best, tied)
    return standing


def _beaten(settings: Mapping[int, SettingTimes], level: float) -> set[int]:
    """The settings that are shown to be slower than another in the same shared rounds."""
    return {
        place
        for place, one in settings.items()
        if any(one.shares(other) and _slower(one, other, None, level) for other in settings.values())
    }


def seen(rows: pd.DataFrame) -> list[Disturbance]:
    """What rows of results.RunRow say of other processes."""
    columns = rows[["cores", "other_cores", "waited"]].astype(object)
    return [Disturbance(*row) for row in columns.where(columns.notna(), None).itertuples(index=False)]


def plain_changed(rows: pd.DataFrame) -> bool:
    """Whether plain decoding of the same texts differs from run to run by more than rounds of single runs explain."""
    errors, rounds = (rows[name].astype(float) for name in ("plain_round_error", "rounds"))
    known = errors > 0
    spread = _scatter(rows[known], texts=True)
    if spread is None:
        return False
    own = Variance(float((errors[known] ** 2).mean()), float((rounds[known] - 1).sum()))
    return bool(stats.f.sf(spread.value / own.value, spread.freedom, own.freedom) < CHANGED)


def _scatter(rows: pd.DataFrame, texts: bool) -> Variance | None:
    """The variance of log(plain tokens a second) within runs of the same plain work, or of the same plain texts; None
    where no two have it."""
    if "rounds_of" in rows and rows["rounds_of"].notna().any():
        # Runs in shared rounds are one piece of plain work, of which the run with the most batches has the most.
        rows = rows.sort_values("plain_tokens", ascending=False, kind="stable")
        rows = rows[rows["rounds_of"].isna() | ~rows.duplicated("rounds_of")]
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
class SettingTimes:
    """What is known of a setting's speed.

    Attributes:
        gain: log(speedup).
        batches: the columns BATCHES [4, batches]; of none where they are not known, or one.
        rounds: the variance of the gain from rounds, if it is known.
        looks: comparisons in shared rounds up to the setting's last; 0 outside of such rounds.
        rounds_of: the job that began the shared rounds; None outside of such.
    """

    gain: float
    batches: np.ndarray
    rounds: list[Variance]
    looks: int = 0
    rounds_of: int | None = None

    @staticmethod
    def of(row: pd.Series) -> SettingTimes:
        error, columns = row["round_error"], [row[name] for name in BATCHES]
        known = all(isinstance(column, Sequence | np.ndarray) and len(column) > 1 for column in columns)
        shared = pd.notna(row.get("rounds_of"))
        return SettingTimes(
            float(np.log(row["speedup"])),
            np.array([np.asarray(column, dtype=float) for column in columns]) if known else np.zeros((4, 0)),
            [Variance(float(error) ** 2, float(row["rounds"]) - 1)] if pd.notna(error) and error > 0 else [],
            *((int(row["looks"]), int(row["rounds_of"])) if shared else ()),
        )

    @staticmethod
    def shared(batches: np.ndarray, looks: int, rounds_of: int) -> SettingTimes:
        """Of a setting in shared rounds."""
        tokens, seconds, plain_tokens, plain_seconds = batches.sum(axis=1)
        gain = float(np.log(tokens / seconds / (plain_tokens / plain_seconds)))
        return SettingTimes(gain, batches, [], looks, rounds_of)

    @property
    def part(self) -> np.ndarray:
        return parts(*self.batches)

    def tail(self, level: float) -> float:
        """The share of a level that the setting's last look may spend."""
        return level / (self.looks * (self.looks + 1)) if self.looks else level

    def shares(self, other: SettingTimes) -> bool:
        """Whether both were timed in the same shared rounds."""
        return self.rounds_of is not None and self.rounds_of == other.rounds_of

    def first(self, count: int) -> SettingTimes:
        """Over the first batches alone."""
        if self.batches.shape[1] <= count:
            return self
        return SettingTimes.shared(self.batches[:, :count], self.looks, self.rounds_of or 0)

    def pays(self, level: float) -> bool:
        known = self.batches.shape[1] > 1
        return known and self.gain > half_width([batch_variance(self.part), *self.rounds], self.tail(level))


def _compared(one: SettingTimes, other: SettingTimes, drift: Variance | None, level: float) -> tuple[float, float]:
    """By how much log(speedup) of the other is higher, and how far that reaches at the level."""
    shared = one.shares(other)
    count, others = one.batches.shape[1], other.batches.shape[1]
    if min(count, others) < 2:
        return 0.0, np.inf
    if shared:
        one, other = one.first(others), other.first(count)
    paired = shared or count == others
    batches = [one.part - other.part] if paired else [one.part, other.part]
    machine = [] if shared or drift is None else [Variance(2 * drift.value, drift.freedom)]
    variances = [*map(batch_variance, batches), *one.rounds, *other.rounds, *machine]
    tail = one.tail(level) if shared else min(one.tail(level), other.tail(level))
    return other.gain - one.gain, half_width(variances, tail)


def _slower(one: SettingTimes, other: SettingTimes, drift: Variance | None, level: float) -> bool:
    """Whether a setting is shown to be slower than another one."""
    gained, half = _compared(one, other, drift, level)
    return bool(gained > half)


def _tied(one: SettingTimes, best: SettingTimes, level: float) -> bool:
    """Whether shared rounds show a setting to be within TIE of the best one, in both directions."""
    gained, half = _compared(one, best, None, level)
    return one.shares(best) and bool(abs(gained) + half <= np.log(1 + TIE))
