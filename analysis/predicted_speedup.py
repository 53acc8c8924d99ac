"""Can a speedup be predicted before anything is decoded? Predicted against measured, and the term that is at fault."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from analysis.pages import Illustration
from analysis.sections import main, read_rows, read_table, write_page
from specbench.cost.model import COST, fit
from specbench.plots import cost as plots

WITHIN = 0.1
QUESTION = """\
A trace says how many tokens a step emits at every gamma, a cost model how long a step takes at every gamma and batch.
Together they predict the speedup before anything is decoded speculatively. How close is that to what is measured, and
where it is not close, which term is at fault?"""
NOTE = """\
Speedup over plain decoding, end to end, prompts included; brackets hold 95% intervals: of the prediction over resampled
prompts, accept/reject noise and rounds of cost measurements, of the measurement by bootstrap over timed batches. The
last four columns are measured over predicted: tokens a step of a request, seconds a step of a batch, the same of plain
decoding, and seconds of feeding a batch's prompts. A speedup is too high by what makes the first too low, the second
too high and the third too low."""
SPEEDUPS = "Lines and bands are predicted from a recorded trace and measured costs; points are decoded runs."
STEPS = """\
Seconds of a forward pass against the tokens of all requests in it. Up to the knee further tokens are free."""
BATCHES = """\
What a batch that is always full would gain, by the same model; dashed beyond the measured batches, where only the
rooflines' shape speaks. Where the lines cross 1, speculation stops to pay."""
TERMS = {
    "tokens_per_step": "acceptance (tokens a step)",
    "step_seconds": "the speculative step's time",
    "plain_step_seconds": "the plain step's time",
    "start_seconds": "the prompts' time",
}


def report(run_dir: Path) -> Path:
    """Writes the report into ``run_dir``/report; returns the path of report.md.

    Raises:
        ConfigError: a folder without results of this experiment.
    """
    rows = read_rows(run_dir)
    predicted = read_table(run_dir, "predicted.parquet", rows, ["verifier"])
    measured = read_table(run_dir, "measured.parquet", rows, ["verifier"])
    both = compared(predicted, measured)
    steady = read_table(run_dir, "steady.parquet", rows, ["verifier"])
    findings = [best_points(both), everywhere(both), crossover(steady)]
    costs = read_table(run_dir, COST, rows, ["verifier"])
    return write_page(
        run_dir, "Predicted against measured speedup", QUESTION, findings, rendered(both), NOTE,
        _illustrations(predicted, measured, costs, steady), rows, both,
    )  # fmt: skip


def compared(predicted: pd.DataFrame, measured: pd.DataFrame) -> pd.DataFrame:
    """One line a decoded setting: both speedups, and measured over predicted of every term."""
    both = measured.merge(predicted, on=["job", "verifier", "batch", "gamma"], suffixes=("", "_predicted"))
    for term in TERMS:
        both[f"{term}_ratio"] = both[term] / both[f"{term}_predicted"]
    both["error"] = both["speedup_predicted"] / both["speedup"] - 1
    return both.sort_values(["verifier", "batch", "gamma"], ignore_index=True)


def rendered(both: pd.DataFrame) -> pd.DataFrame:
    """The comparison as text."""
    return pd.DataFrame(
        [
            {
                "verifier": row["verifier"],
                "batch": str(row["batch"]),
                "gamma": str(row["gamma"]),
                "predicted": f"{row['speedup_predicted']:.2f} "
                f"[{row['speedup_low_predicted']:.2f}, {row['speedup_high_predicted']:.2f}]",
                "measured": f"{row['speedup']:.2f} [{row['speedup_low']:.2f}, {row['speedup_high']:.2f}]",
                "error": f"{row['error']:+.1%}",
                "tokens/step": f"{row['tokens_per_step_ratio']:.2f}",
                "s/step": f"{row['step_seconds_ratio']:.2f}",
                "plain s/step": f"{row['plain_step_seconds_ratio']:.2f}",
                "prompts": f"{row['start_seconds_ratio']:.2f}",
            }
            for _, row in both.iterrows()
        ]
    )


def best_points(both: pd.DataFrame) -> str:
    """The prediction at the best measured gamma of each verifier and batch, and what is at fault where it misses."""
    sentences = []
    for _, points in both.groupby(["verifier", "batch"], sort=False):
        best = points.loc[points["speedup"].idxmax()]
        text = (
            f"{best['verifier']}, batch {best['batch']}: best measured at gamma {best['gamma']}, "
            f"{best['speedup']:.2f}; predicted {best['speedup_predicted']:.2f}, {best['error']:+.1%}"
        )
        if abs(best["error"]) > WITHIN:
            text += f" (**a miss**, chiefly by {fault(best)})"
        sentences.append(text + ".")
    return "\n".join(f"- {sentence}" for sentence in sentences)


def fault(row: pd.Series) -> str:
    """The term that moves the speedup furthest from the prediction, in words; times count by their share."""
    prompts = min(row["start_seconds"] / row["batch_seconds"], 1.0)
    shares = {"step_seconds": 1 - prompts, "start_seconds": prompts}
    worst = max(TERMS, key=lambda term: abs(math.log(row[f"{term}_ratio"])) * shares.get(term, 1.0))
    return f"{TERMS[worst]}, {row[f'{worst}_ratio']:.2f} times what was predicted"


def everywhere(both: pd.DataFrame) -> str:
    """How far off the predictions are over all settings."""
    off = both["error"].abs()
    inside = (both["speedup"] >= both["speedup_low_predicted"]) & (both["speedup"] <= both["speedup_high_predicted"])
    return (
        f"Over all {len(both)} settings the prediction is off by {off.median():.1%} (median) and at most "
        f"{off.max():.1%}; {int((off <= WITHIN).sum())} lie within {WITHIN:.0%}, and {int(inside.sum())} of the "
        "measured speedups lie in the predicted interval."
    )


def crossover(steady: pd.DataFrame) -> str:
    """The predicted batch from which speculation no longer pays: its range over runs and rounds, or "not known"."""
    words = []
    for name, lines in steady.groupby("verifier", sort=False):
        runs = lines.drop_duplicates("job")
        known = runs.dropna(subset="crossover")
        text = "not known"
        if len(known):
            text = f"{int(known['crossover_low'].min())} to {int(known['crossover_high'].max())}"
            text += f", not known by {len(runs) - len(known)} of {len(runs)} runs" if len(known) < len(runs) else ""
        words.append(f"{name}: {text}")
    return (
        f"The smallest batch that gains nothing at any gamma, if it is always full, by the model: {'; '.join(words)}. "
        f"Measured up to {steady['tokens_measured'].max()} tokens a call, a batch of "
        f"{steady[steady['measured']]['batch'].max()}; a crossover is called known up to 4 times that batch, if the "
        "target's knee was reached, and if every round of cost measurements has it there."
    )


def _illustrations(
    predicted: pd.DataFrame, measured: pd.DataFrame, costs: pd.DataFrame, steady: pd.DataFrame
) -> Iterator[Illustration]:
    yield Illustration("predicted_against_measured", plots.predicted_speedups(predicted, measured), SPEEDUPS)
    first = costs[costs["job"] == costs["job"].min()]
    yield Illustration("step_times", plots.step_times(first, fit(first)), STEPS)
    lines = steady[steady["job"] == steady["job"].min()]
    yield Illustration("speedup_by_batch", plots.speedup_by_batch(lines), BATCHES)


if __name__ == "__main__":
    main("predicted_speedup", report)
