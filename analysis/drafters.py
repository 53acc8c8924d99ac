"""What do drafters gain and cost, by category of prompt?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from specbench import winner
from specbench.metrics.acceptance import totals_by_prompt
from specbench.metrics.intervals import Estimate, columns, ratio_of_sums
from specbench.metrics.speed import Rounds, speed_of
from specbench.plots.drafters import speedup_by_category
from specbench.reports import Picture, Report, Table, Text
from specbench.reports.cells import interval, number, plain
from specbench.reports.text import section
from specbench.results import STEPS, TEXTS

from .command import main
from .decoding import repeats, setting, synthetic, where_it_ran
from .folder import read_rows, read_table, report_of

QUESTION = """\
What do drafters gain, and what do they cost, on prompts that copy and on prompts that do not? A lookup costs next to
nothing, but it can only propose what was written before."""
ROUNDS = "rounds.parquet"  # its schema is in protocols/rounds.py, which needs PyTorch
ALL, NO_CATEGORY = "all", "no category"
OVERALL = """\
Brackets hold 95% intervals: by bootstrap over prompts; for speedups by the scatter of prompts and of rounds. Tokens
drafted: on average in a step, 0 where nothing was found. Draft share: the part of the decoding time, prompts included,
that went into drafting."""
BY_CATEGORY = """\
The same for the prompts of each category. With few prompts in a category an interval says little: bootstrap intervals
over 6 prompts hold the truth in fewer than 95% of runs."""
SPEEDUP = """\
Tokens a second over those of plain decoding on the same prompts, timed side by side through the same engine; bars are
95% intervals. Above the dashed line speculation pays."""


def build(run_dir: Path) -> Report:
    """The report of a comparison of drafters.

    Raises:
        ConfigError: a folder without results of decoding, or without the logs of its jobs.
    """
    rows = read_rows(run_dir, "speedup", "acceptance_length").sort_values(["temperature", "job"])
    found = by_category(run_dir, rows)
    everything = setting(rows)
    shown, parts = overall_table(rows, found), found[found["category"] != ALL]
    tables = [Table("table", shown, rows, f"Drafters. {everything}", OVERALL, ("drafter", "verifier"))]
    if len(parts):
        caption = f"Drafters by category of prompt. {everything}"
        tables.append(Table("categories", category_table(parts), parts, caption, BY_CATEGORY, ("category", "drafter")))
    timed = found[found["speedup"].notna()]
    pictures = [] if timed.empty else [_picture(timed, everything)]
    answer = [synthetic(rows), winner.machine(rows), fastest(rows), *best_by_category(parts), repeats(rows)]
    sections = [
        section("Result", *answer),
        section("Tables", *tables),
        section("Figures", *pictures),
        where_it_ran(rows),
    ]
    return report_of(run_dir, "drafters", "Drafters", QUESTION, sections)


def by_category(run_dir: Path, rows: pd.DataFrame) -> pd.DataFrame:
    """Acceptance and speedup of each job, for each category of prompts and for all of them, with 95% intervals.

    A speedup is of groups that are timed as one, so that categories have one only if each group is a single prompt.
    """
    steps, texts, rounds = (read_table(run_dir, name, rows, []) for name in (STEPS, TEXTS, ROUNDS))
    lines = []
    for _, row in rows.iterrows():
        log, own = steps[steps["job"] == row["job"]], texts[texts["job"] == row["job"]].reset_index(drop=True)
        times = rounds[rounds["job"] == row["job"]]
        named = own["category"].fillna("").replace("", NO_CATEGORY)
        categories = [ALL, *dict.fromkeys(named)] if named.nunique() > 1 else [ALL]
        for category in categories:
            chosen = own if category == ALL else own[named == category]
            given = {"temperature": row["temperature"], "category": category, "drafter": row["drafter"]}
            measured = acceptance(log[log["prompt"].isin(chosen["prompt"])])
            if category == ALL:
                measured |= {f"speedup{end}": row[f"speedup{end}"] for end in ("", "_low", "_high")}
            elif row["group"] == 1:  # batches are numbered as the texts stand
                measured |= columns("speedup", speedup(times[times["batch"].isin(chosen.index)]))
            lines.append({**given, "job": row["job"], "prompts": len(chosen), **measured})
    named = [f"speedup{end}" for end in ("", "_low", "_high")]
    return pd.DataFrame(lines).reindex(columns=list(dict.fromkeys([*lines[0], *named])))


def acceptance(steps: pd.DataFrame) -> dict[str, float | None]:
    """Tokens drafted a step, acceptance rate and length, with intervals over prompts."""
    totals = totals_by_prompt(steps)
    drafted, accepted, count = (totals[name].to_numpy() for name in ("drafted", "accepted", "steps"))
    return {
        **columns("drafted_a_step", ratio_of_sums(drafted, count)),
        **columns("acceptance_rate", ratio_of_sums(accepted, drafted)),
        **columns("acceptance_length", ratio_of_sums(accepted + count, count)),
    }


def speedup(times: pd.DataFrame) -> Estimate:
    """The speedup of some batches of a run, from its rounds.parquet."""
    arrays = [
        times[times["way"] == way].pivot(index="round", columns="batch", values=value).to_numpy()
        for way in ("speculative", "plain")
        for value in ("tokens", "seconds")
    ]
    return speed_of(Rounds(*arrays)).speedup


def overall_table(rows: pd.DataFrame, found: pd.DataFrame) -> pd.DataFrame:
    """A line a run."""
    drafted = found[found["category"] == ALL].set_index("job")
    lines = []
    for _, row in rows.iterrows():
        share = row["seconds_draft"] / row["seconds"]
        lines.append(
            {
                "temperature": plain(row["temperature"]),
                "drafter": row["drafter"],
                "verifier": row["verifier"],
                "tokens drafted": interval(drafted.loc[row["job"]], "drafted_a_step"),
                "acceptance rate": interval(row, "acceptance_rate"),
                "acceptance length": interval(row, "acceptance_length"),
                "draft share": number(share, ".1%"),
                "speedup": interval(row, "speedup"),
            }
        )
    return pd.DataFrame(lines)


def category_table(found: pd.DataFrame) -> pd.DataFrame:
    """A line a category, drafter and temperature."""
    lines = []
    for _, row in found.sort_values(["temperature", "category", "job"]).iterrows():
        lines.append(
            {
                "temperature": plain(row["temperature"]),
                "category": row["category"],
                "drafter": row["drafter"],
                "prompts": str(row["prompts"]),
                "tokens drafted": interval(row, "drafted_a_step"),
                "acceptance rate": interval(row, "acceptance_rate"),
                "acceptance length": interval(row, "acceptance_length"),
                "speedup": interval(row, "speedup"),
            }
        )
    return pd.DataFrame(lines)


def fastest(rows: pd.DataFrame) -> Text:
    """The fastest run, if the data show which it is."""
    return winner.fastest(
        rows, [f"{row['drafter']} at temperature {plain(row['temperature'])}" for _, row in rows.iterrows()]
    )


def best_by_category(found: pd.DataFrame) -> Iterator[str]:
    """Which drafter has the highest acceptance length in each category, a sentence a temperature."""
    for temperature, here in found.groupby("temperature"):
        best = here.loc[here.groupby("category", sort=False)["acceptance_length"].idxmax()]
        told = [
            f"{row['drafter']} in {row['category']} ({interval(row, 'acceptance_length')})"
            for _, row in best.iterrows()
        ]
        yield f"At temperature {temperature:g} the highest acceptance lengths are those of {', '.join(told)}."


def _picture(found: pd.DataFrame, where: str) -> Picture:
    figure = speedup_by_category(found)
    return Picture("speedup_by_category", figure, "Which drafter pays on which prompts?", f"{SPEEDUP} {where}")


if __name__ == "__main__":
    main("drafters", build)
