"""Can a speedup be predicted before anything is decoded? Predicted against measured, and the term that is at fault."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
from scipy import stats

from specbench.metrics.intervals import CONFIDENCE
from specbench.replay.cost.model import COST, fit
from specbench.reports import Bullets, Link, Picture, Report, Strong, Table, Text
from specbench.reports.between import RULES
from specbench.reports.cells import few_units, interval
from specbench.reports.plots import cost as plots
from specbench.reports.text import join, section

from .command import main
from .decoding import setting, where_it_ran
from .folder import read_rows, read_table, report_of

WITHIN = 0.1
SURPRISE = 0.01  # so few points inside, had each a chance of 95%, are no accident
QUESTION = """\
A trace says how many tokens a step emits at every gamma, a cost model how long a step takes at every gamma and batch.
Together they predict the speedup before anything is decoded speculatively. How close is that to what is measured, and
where it is not close, which term is at fault?"""
NOTE = (
    """\
Speedup over plain decoding, end to end, prompts included; brackets hold nominal 95% intervals: of the prediction over
resampled prompts, accept/reject noise and rounds of cost measurements, of the measurement by Student's t over timed
batches. Best: the gamma of the highest predicted and of the highest measured speedup of those decoded. Regret: speedup
lost against the highest measured, which is picked among noisy numbers, so that a small regret may be none. The last
four columns are measured over predicted: tokens a step of a request, seconds a step of a batch, the same of plain
decoding, and seconds of feeding a batch's prompts. A speedup is too high by what makes the first too low, the second
too high and the third too low. """,
    Link("table.csv", "table.csv"),
    " holds every column, unrounded.",
)
SPEEDUPS = """\
Lines and bands are predicted from a recorded trace and measured costs; points are decoded runs. Above the dashed line,
plain decoding, speculation pays."""
STEPS = """\
Time of a forward pass against the tokens of all requests in it. Points are measured, the line is the roofline that was
fitted to them. Up to its knee further tokens are free."""
BATCHES = """\
What a batch that is always full would gain, by the same model; dashed beyond the measured batches, where only the
rooflines' shape speaks. Where the lines cross 1, speculation stops to pay."""
TERMS = {
    "tokens_per_step": "acceptance (tokens a step)",
    "step_seconds": "the speculative step's time",
    "plain_step_seconds": "the plain step's time",
    "start_seconds": "the prompts' time",
}


def build(run_dir: Path) -> Report:
    """The report of a run.

    Raises:
        ConfigError: a folder without results of this experiment.
    """
    rows = read_rows(run_dir)
    predicted = read_table(run_dir, "predicted.parquet", rows, ["verifier"])
    measured = read_table(run_dir, "measured.parquet", rows, ["verifier"])
    both = compared(predicted, measured)
    steady = read_table(run_dir, "steady.parquet", rows, ["verifier"])
    costs = read_table(run_dir, COST, rows, ["verifier"])
    few = few_units({"prompts": int(rows["prompts"].min())})
    caption = f"Predicted and measured speedups, and their quotient term by term. {setting(rows)}"
    shown = Table("table", rendered(both), both, caption, join([NOTE, few]), left=("verifier", "best"))
    sections = [
        section("Result", headline(both), recommendations(both), everywhere(both), crossover(steady)),
        section("Table", shown),
        section("Figures", *_pictures(predicted, measured, costs, steady, setting(rows))),
        where_it_ran(rows),
    ]
    rules = [RULES[each] for each in rows["verifier"] if each in RULES]
    return report_of(run_dir, "predicted_speedup", "Predicted against measured speedup", QUESTION, sections, rules)


def compared(predicted: pd.DataFrame, measured: pd.DataFrame) -> pd.DataFrame:
    """One line a decoded setting: both speedups, and measured over predicted of every term.

    Columns of its own: ``error`` = predicted / measured - 1; ``inside``, whether the measured speedup lies in the
    predicted interval; ``recommended``, the highest predicted speedup of its job, and ``best``, the highest measured
    one; ``regret`` = the highest measured speedup - this one's.
    """
    both = measured.merge(predicted, on=["job", "verifier", "batch", "gamma"], suffixes=("", "_predicted"))
    for term in TERMS:
        both[f"{term}_ratio"] = both[term] / both[f"{term}_predicted"]
    both["error"] = both["speedup_predicted"] / both["speedup"] - 1
    both["inside"] = both["speedup"].between(both["speedup_low_predicted"], both["speedup_high_predicted"])
    jobs = both.groupby("job")
    both["recommended"] = jobs["speedup_predicted"].transform("idxmax") == both.index
    both["best"] = jobs["speedup"].transform("idxmax") == both.index
    both["regret"] = jobs["speedup"].transform("max") - both["speedup"]
    return both.sort_values(["verifier", "batch", "job", "gamma"], ignore_index=True)


def rendered(both: pd.DataFrame) -> pd.DataFrame:
    """The comparison as text."""
    return pd.DataFrame(
        [
            {
                "verifier": row["verifier"],
                "batch": str(row["batch"]),
                "gamma": str(row["gamma"]),
                "predicted": _predicted(row),
                "measured": interval(row, "speedup"),
                "error": f"{row['error']:+.1%}",
                "best": ", ".join(w for w, c in (("predicted", "recommended"), ("measured", "best")) if row[c]),
                "regret": f"{row['regret']:.2f}",
                "tokens/step": f"{row['tokens_per_step_ratio']:.2f}",
                "s/step": f"{row['step_seconds_ratio']:.2f}",
                "plain s/step": f"{row['plain_step_seconds_ratio']:.2f}",
                "prompts": f"{row['start_seconds_ratio']:.2f}",
            }
            for _, row in both.iterrows()
        ]
    )


def headline(both: pd.DataFrame) -> str:
    """What relying on the prediction costs; and, apart from it, how close it is at gammas known by hindsight."""
    chosen, best = both[both["recommended"]], both[both["best"]]
    lost = chosen["regret"] / (chosen["speedup"] + chosen["regret"])
    close, hindsight = (int((each["error"].abs() <= WITHIN).sum()) for each in (chosen, best))
    return (
        f"At the gamma that the prediction recommends it is within {WITHIN:.0%} of the measured speedup in {close} of "
        f"{len(chosen)} settings. Decoding at that gamma loses {lost.median():.1%} of the best measured speedup "
        f"(median), {lost.max():.1%} at most. At the best measured gamma, which only hindsight knows, it is within "
        f"{WITHIN:.0%} in {hindsight} of {len(best)}."
    )


def recommendations(both: pd.DataFrame) -> Bullets:
    """Of each setting: the recommended gamma, the prediction's error there, its regret; what is at fault in a miss."""
    lines: list[Text] = []
    for _, points in both.groupby("job", sort=False):
        chosen, best = (points[points[name]].iloc[0] for name in ("recommended", "best"))
        text = (
            f"{chosen['verifier']}, batch {chosen['batch']}: recommended is gamma {chosen['gamma']}, predicted "
            f"{_predicted(chosen)}, measured {interval(chosen, 'speedup')}, error {chosen['error']:+.1%}"
        )
        miss: Text = ""
        if abs(chosen["error"]) > WITHIN:
            miss = (" (", Strong("a miss"), f", chiefly by {fault(chosen)})")
        end = f"; best measured is gamma {best['gamma']}, {interval(best, 'speedup')}, regret {chosen['regret']:.2f}."
        lines.append(join([text, miss, end], between=""))
    return Bullets(tuple(lines))


def _predicted(row: pd.Series) -> str:
    names = [f"speedup{end}" for end in ("", "_low", "_high")]
    return interval(pd.Series({name: row[f"{name}_predicted"] for name in names}), "speedup")


def fault(row: pd.Series) -> str:
    """The term that moves the speedup furthest from the prediction, in words; times count by their share."""
    prompts = min(row["start_seconds"] / row["batch_seconds"], 1.0)
    shares = {"step_seconds": 1 - prompts, "start_seconds": prompts}
    worst = max(TERMS, key=lambda term: abs(math.log(row[f"{term}_ratio"])) * shares.get(term, 1.0))
    return f"{TERMS[worst]}, {row[f'{worst}_ratio']:.2f} times what was predicted"


def everywhere(both: pd.DataFrame) -> Text:
    """How far off the predictions are over all settings, and whether their intervals are what they are called."""
    off, inside, count = both["error"].abs(), int(both["inside"].sum()), len(both)
    text = (
        f"Over all {count} decoded points the prediction is off by {off.median():.1%} (median) and at most "
        f"{off.max():.1%}, and too high in {int((both['error'] > 0).sum())}; {int((off <= WITHIN).sum())} lie within "
        f"{WITHIN:.0%}. {inside} of the {count} measured speedups ({inside / count:.0%}) lie in the predicted interval."
    )
    if stats.binom.cdf(inside, count, CONFIDENCE) < SURPRISE:
        return (
            f"{text} ",
            Strong(f"They are no {CONFIDENCE:.0%} intervals"),
            ": they hold the sampling of prompts, the noise of acceptance "
            "and the rounds of cost measurements, not what the cost model gets wrong, a machine that is slower or "
            "faster by then, or the measurement's own noise.",
        )
    return text


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


def _pictures(
    predicted: pd.DataFrame, measured: pd.DataFrame, costs: pd.DataFrame, steady: pd.DataFrame, where: str
) -> Iterator[Picture]:
    figure, question = plots.predicted_speedups(predicted, measured), "Is the measured speedup the predicted one?"
    yield Picture("predicted_against_measured", figure, question, f"{SPEEDUPS} {where}")
    first = costs[costs["job"] == costs["job"].min()]
    question = "What does a forward pass take, by the tokens in it?"
    yield Picture("step_times", plots.step_times(first, fit(first)), question, f"{STEPS} {where}")
    lines = steady[steady["job"] == steady["job"].min()]
    question = "Up to which batch does speculation pay, by the model?"
    yield Picture("speedup_by_batch", plots.speedup_by_batch(lines), question, f"{BATCHES} {where}")


if __name__ == "__main__":
    main("predicted_speedup", build)
