"""Can a speedup be predicted before anything is decoded? Predicted against measured, and the term that is at fault."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from scipy.special import rel_entr

from specbench.core import rounding
from specbench.metrics.columns import Column, columns_of, typed
from specbench.metrics.intervals import CONFIDENCE
from specbench.replay.cost.forecast import MEASURED, PREDICTED, MeasuredRow
from specbench.replay.cost.model import COST, fit
from specbench.reports import Report, Table
from specbench.reports.cells import interval
from specbench.reports.plots import replay as plots

from .command import main
from .folder import read_rows, read_table
from .page import page

WITHIN = 0.1
SURPRISE = 0.01  # the p-value below which misses are no accident, had each point a chance of 95% to lie inside


@dataclass(frozen=True, kw_only=True)
class ComparedRow(MeasuredRow):
    """A decoded setting. ``_predicted`` is what was predicted for a column, ``_ratio`` is measured over predicted.

    Attributes:
        predicted: the speedup with its interval, as text.
        error: predicted / measured speedup - 1.
        inside: whether the measured speedup lies in the predicted interval.
        recommended, best: whether it has the highest predicted, or measured, speedup of its job.
        regret: the highest measured speedup of its job - its own.
    """

    job: int
    verifier: str
    speedup_predicted: float
    speedup_low_predicted: float
    speedup_high_predicted: float
    tokens_per_step_ratio: float
    step_seconds_ratio: float
    plain_step_seconds_ratio: float
    start_seconds_ratio: float
    predicted: str
    error: float
    inside: bool
    recommended: bool
    best: bool
    regret: float


Point = columns_of(ComparedRow)
SETTING: list[Column] = [Point.job, Point.verifier, Point.batch, Point.gamma]
TERMS: dict[Column, str] = {
    Point.tokens_per_step: "acceptance (tokens a step)",
    Point.step_seconds: "the speculative step's time",
    Point.plain_step_seconds: "the plain step's time",
    Point.start_seconds: "the prompts' time",
}


def build(run_dir: Path) -> Report:
    """The report of a run."""
    rows = read_rows(run_dir)
    predicted, measured, costs = (
        read_table(run_dir, name, rows, [Point.verifier]) for name in (PREDICTED, MEASURED, COST)
    )
    both = compared(predicted, measured)
    first = costs[costs[Point.job] == costs[Point.job].min()]
    shown = {
        "table": Table("table", rendered(both), both, left=("verifier", "best")),
        "predicted_against_measured": plots.predicted_speedups(predicted, measured),
        "step_times": plots.step_times(first, fit(first)),
    }
    return page(
        run_dir,
        rows,
        "predicted_speedup",
        shown,
        both=both,
        within=WITHIN,
        surprising=surprising(both),
        recommended=recommendations(both),
    )


def compared(predicted: pd.DataFrame, measured: pd.DataFrame) -> pd.DataFrame:
    """ComparedRow of each decoded setting."""
    both = measured.merge(predicted, on=SETTING, suffixes=("", "_predicted"))
    for term in TERMS:
        both[f"{term}_ratio"] = both[term] / both[f"{term}_predicted"]
    low, high = both[Point.speedup_low_predicted], both[Point.speedup_high_predicted]
    both[Point.predicted] = list(map(rounding.speedup, both[Point.speedup_predicted], low, high))
    both[Point.error] = both[Point.speedup_predicted] / both[Point.speedup] - 1
    both[Point.inside] = both[Point.speedup].between(low, high)
    jobs = both.groupby(Point.job)
    both[Point.recommended] = jobs[Point.speedup_predicted].transform("idxmax") == both.index
    both[Point.best] = jobs[Point.speedup].transform("idxmax") == both.index
    both[Point.regret] = jobs[Point.speedup].transform("max") - both[Point.speedup]
    return both.sort_values([Point.verifier, Point.batch, Point.job, Point.gamma], ignore_index=True)


def rendered(both: pd.DataFrame) -> pd.DataFrame:
    """The comparison as text."""
    return pd.DataFrame(
        {
            "verifier": row.verifier,
            "batch": str(row.batch),
            "gamma": str(row.gamma),
            "predicted": row.predicted,
            "measured": interval(row, Point.speedup),
            "error": f"{row.error:+.1%}",
            "best": ", ".join(w for w, is_best in (("predicted", row.recommended), ("measured", row.best)) if is_best),
            "regret": f"{row.regret:.2f}",
            "tokens/step": f"{row.tokens_per_step_ratio:.2f}",
            "s/step": f"{row.step_seconds_ratio:.2f}",
            "plain s/step": f"{row.plain_step_seconds_ratio:.2f}",
            "prompts": f"{row.start_seconds_ratio:.2f}",
        }
        for row in typed(both, ComparedRow)
    )


def recommendations(both: pd.DataFrame) -> list[tuple[ComparedRow, ComparedRow, tuple[str, float] | None]]:
    """Of each setting: the points of the recommended and of the best measured gamma; what is at fault in a miss."""
    choices = []
    for _, points in both.groupby(Point.job, sort=False):
        (chosen,), (best,) = (typed(points[points[name]], ComparedRow) for name in (Point.recommended, Point.best))
        choices.append((chosen, best, fault(chosen) if abs(chosen.error) > WITHIN else None))
    return choices


def fault(row: ComparedRow) -> tuple[str, float]:
    """The term that moves the speedup furthest from the prediction, and how many times it is what was predicted; times
    count by their share."""
    prompts = min(row.start_seconds / row.batch_seconds, 1.0)
    ratios = {term: getattr(row, f"{term}_ratio") for term in TERMS}
    shares = {Point.step_seconds: 1 - prompts, Point.start_seconds: prompts}
    worst = max(TERMS, key=lambda term: abs(math.log(ratios[term])) * shares.get(term, 1.0))
    return TERMS[worst], ratios[worst]


def surprising(both: pd.DataFrame) -> bool:
    """Returns whether fewer measured speedups lie in the predicted intervals than chance explains.

    The settings of a job share its trace and its measured costs, so that they may all miss at once: jobs are counted.
    The shares of misses of n jobs lie in [0, 1] and have a mean of at most 5%; were jobs independent, their average
    would be s or more with a probability of at most exp(-n KL(s, 5%)) (Hoeffding, "Probability inequalities for sums of
    bounded random variables", JASA 58, 1963, theorem 1), whatever the settings of a job have in common. Jobs of one
    seed share the recorded texts too, and may miss together: for them that is no bound.
    """
    misses = 1 - both.groupby(Point.job)[Point.inside].mean()
    share, expected = float(misses.mean()), 1 - CONFIDENCE
    divergence = rel_entr(share, expected) + rel_entr(1 - share, 1 - expected)
    return share > expected and bool(math.exp(-len(misses) * divergence) < SURPRISE)


if __name__ == "__main__":
    main("predicted_speedup", build)
