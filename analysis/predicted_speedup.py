"""Can a speedup be predicted before anything is decoded? Predicted against measured, and the term that is at fault."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd
from scipy.special import rel_entr

from specbench.metrics.intervals import CONFIDENCE
from specbench.replay.cost.model import COST, fit
from specbench.reports import Report, Table, cells
from specbench.reports.cells import interval
from specbench.reports.plots import cost as plots

from .command import main
from .folder import read_rows, read_table
from .page import page

WITHIN = 0.1
SURPRISE = 0.01  # the p-value below which misses are no accident, had each point a chance of 95% to lie inside
TERMS = {
    "tokens_per_step": "acceptance (tokens a step)",
    "step_seconds": "the speculative step's time",
    "plain_step_seconds": "the plain step's time",
    "start_seconds": "the prompts' time",
}


def build(run_dir: Path) -> Report:
    """The report of a run."""
    rows = read_rows(run_dir)
    predicted = read_table(run_dir, "predicted.parquet", rows, ["verifier"])
    measured = read_table(run_dir, "measured.parquet", rows, ["verifier"])
    both = compared(predicted, measured)
    steady = read_table(run_dir, "steady.parquet", rows, ["verifier"])
    costs = read_table(run_dir, COST, rows, ["verifier"])
    first, lines = costs[costs["job"] == costs["job"].min()], steady[steady["job"] == steady["job"].min()]
    shown = {
        "table": Table("table", rendered(both), both, left=("verifier", "best")),
        "predicted_against_measured": plots.predicted_speedups(predicted, measured),
        "step_times": plots.step_times(first, fit(first)),
        "speedup_by_batch": plots.speedup_by_batch(lines),
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
        steady=steady,
    )


def compared(predicted: pd.DataFrame, measured: pd.DataFrame) -> pd.DataFrame:
    """One line a decoded setting: both speedups, and measured over predicted of every term.

    Columns of its own: ``predicted``, the speedup with its interval as text; ``error`` = predicted / measured - 1;
    ``inside``, whether the measured speedup lies in the predicted interval; ``recommended``, the highest predicted
    speedup of its job, and ``best``, the highest measured one; ``regret`` = the highest measured speedup - this one's.
    """
    both = measured.merge(predicted, on=["job", "verifier", "batch", "gamma"], suffixes=("", "_predicted"))
    for term in TERMS:
        both[f"{term}_ratio"] = both[term] / both[f"{term}_predicted"]
    ends = [f"speedup{end}" for end in ("", "_low", "_high")]
    of_prediction = both[[f"{end}_predicted" for end in ends]].set_axis(ends, axis=1)
    both["predicted"] = [interval(row, "speedup") for _, row in of_prediction.iterrows()]
    both["error"] = both["speedup_predicted"] / both["speedup"] - 1
    both["inside"] = both["speedup"].between(both["speedup_low_predicted"], both["speedup_high_predicted"])
    jobs = both.groupby("job")
    both["recommended"] = jobs["speedup_predicted"].transform("idxmax") == both.index
    both["best"] = jobs["speedup"].transform("idxmax") == both.index
    both["regret"] = jobs["speedup"].transform("max") - both["speedup"]
    return both.sort_values(["verifier", "batch", "job", "gamma"], ignore_index=True)


def rendered(both: pd.DataFrame) -> pd.DataFrame:
    """The comparison as text."""
    return cells.shown(
        both,
        lambda row: {
            **{name: str(row[name]) for name in ("verifier", "batch", "gamma", "predicted")},
            "measured": interval(row, "speedup"),
            "error": f"{row['error']:+.1%}",
            "best": ", ".join(w for w, c in (("predicted", "recommended"), ("measured", "best")) if row[c]),
            "regret": f"{row['regret']:.2f}",
            "tokens/step": f"{row['tokens_per_step_ratio']:.2f}",
            "s/step": f"{row['step_seconds_ratio']:.2f}",
            "plain s/step": f"{row['plain_step_seconds_ratio']:.2f}",
            "prompts": f"{row['start_seconds_ratio']:.2f}",
        },
    )


def recommendations(both: pd.DataFrame) -> list[tuple[pd.Series, pd.Series, tuple[str, float] | None]]:
    """Of each setting: the points of the recommended and of the best measured gamma; what is at fault in a miss."""
    choices = []
    for _, points in both.groupby("job", sort=False):
        chosen, best = (points[points[name]].iloc[0] for name in ("recommended", "best"))
        choices.append((chosen, best, fault(chosen) if abs(chosen["error"]) > WITHIN else None))
    return choices


def fault(row: pd.Series) -> tuple[str, float]:
    """The term that moves the speedup furthest from the prediction, and how many times it is what was predicted; times
    count by their share."""
    prompts = min(row["start_seconds"] / row["batch_seconds"], 1.0)
    shares = {"step_seconds": 1 - prompts, "start_seconds": prompts}
    worst = max(TERMS, key=lambda term: abs(math.log(row[f"{term}_ratio"])) * shares.get(term, 1.0))
    return TERMS[worst], row[f"{worst}_ratio"]


def surprising(both: pd.DataFrame) -> bool:
    """Returns whether fewer measured speedups lie in the predicted intervals than chance explains.

    The settings of a job share its trace and its measured costs, so that they may all miss at once: jobs are counted.
    The shares of misses of n jobs lie in [0, 1] and have a mean of at most 5%; were jobs independent, their average
    would be s or more with a probability of at most exp(-n KL(s, 5%)) (Hoeffding, "Probability inequalities for sums of
    bounded random variables", JASA 58, 1963, theorem 1), whatever the settings of a job have in common. Jobs of one
    seed share the recorded texts too, and may miss together: for them that is no bound.
    """
    misses = 1 - both.groupby("job")["inside"].mean()
    share, expected = float(misses.mean()), 1 - CONFIDENCE
    divergence = rel_entr(share, expected) + rel_entr(1 - share, 1 - expected)
    return share > expected and bool(math.exp(-len(misses) * divergence) < SURPRISE)


if __name__ == "__main__":
    main("predicted_speedup", build)
