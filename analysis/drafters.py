"""What do drafters gain and cost, by category of prompt?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd

from specbench.reports import Picture, Report, Table, Text, winner
from specbench.reports.between import tokens_a_step
from specbench.reports.cells import interval, number, plain
from specbench.reports.plots.drafters import speedup_by_category
from specbench.reports.text import section
from specbench.reports.varying import varying, with_sampling

from .categories import by_category, read_categories
from .command import main
from .decoding import repeats, setting, synthetic, where_it_ran
from .folder import read_rows, report_of

QUESTION = """\
What do drafters gain, and what do they cost, on prompts that copy and on prompts that do not? A lookup costs next to
nothing, but it can only propose what was written before."""
SETTINGS = ["temperature", "drafter"]
NOTE = """\
Brackets hold 95% intervals: by bootstrap over prompts; for speedups by the scatter of prompts and of rounds. Tokens
drafted: on average in a step, 0 where nothing was found. Draft share: the part of the decoding time, prompts included,
that went into drafting."""
SPEEDUP = """\
Tokens a second over those of plain decoding on the same prompts, timed side by side through the same engine; bars are
95% intervals. Above the dashed line speculation pays."""


def build(run_dir: Path) -> Report:
    """The report of a comparison of drafters.

    Raises:
        ConfigError: a folder without results of decoding, or without the logs of its jobs.
    """
    rows = read_rows(run_dir, "speedup", "drafted_per_step").sort_values(["temperature", "job"])
    everything = setting(rows)
    told = with_sampling(rows)
    beside = varying(told, *SETTINGS)  # in what else runs of this sweep differ
    told["series"] = [_series(row, beside) for _, row in told.iterrows()]
    parts = read_categories(run_dir, told, [*SETTINGS, *beside])
    named = parts if parts.empty else parts.assign(series=parts["job"].map(told.set_index("job")["series"]))
    shown = Table("table", overall_table(told, beside), rows, f"Drafters. {everything}", NOTE, ("drafter", "verifier"))
    alike = [*SETTINGS, *(name for name in beside if name != "verifier")]
    answer = [fastest(told), *best_by_category(named), *tokens_a_step(run_dir, told, alike)]
    answer += [winner.machine(rows), repeats(rows)]
    sections = [
        section("Result", *answer),
        section("Table", shown),
        *by_category(parts, [*SETTINGS, *beside], everything),
        section("Figures", *_pictures(named, everything)),
        where_it_ran(rows),
    ]
    return report_of(run_dir, "drafters", "Drafters", QUESTION, sections, warning=synthetic(rows))


def _series(row: pd.Series, beside: Sequence[str]) -> str:
    """What sentences and the figure call a run, its temperature apart."""
    return "".join([row["drafter"], *(f", {name} {plain(row[name])}" for name in beside)])


def overall_table(rows: pd.DataFrame, beside: Sequence[str]) -> pd.DataFrame:
    """A line a run.

    Args:
        beside: the columns in which runs differ, temperature and drafter apart.
    """
    lines = []
    for _, row in rows.iterrows():
        share = row["seconds_draft"] / row["seconds"]
        lines.append(
            {
                "temperature": plain(row["temperature"]),
                "drafter": row["drafter"],
                **{name: plain(row[name]) for name in dict.fromkeys(["verifier", *beside])},
                "tokens drafted": interval(row, "drafted_per_step"),
                "acceptance rate": interval(row, "acceptance_rate"),
                "acceptance length": interval(row, "acceptance_length"),
                "draft share": number(share, ".1%"),
                "speedup": interval(row, "speedup"),
            }
        )
    return pd.DataFrame(lines)


def fastest(rows: pd.DataFrame) -> Text:
    """The fastest run, if the data show which it is."""
    return winner.fastest(
        rows, [f"{row['series']} at temperature {plain(row['temperature'])}" for _, row in rows.iterrows()]
    )


def best_by_category(found: pd.DataFrame) -> Iterator[str]:
    """Which drafter has the highest acceptance length in each category, a sentence a temperature."""
    if found.empty:
        return
    for temperature, here in found.groupby("temperature"):
        best = here.loc[here.groupby("category", sort=False)["acceptance_length"].idxmax()]
        told = [
            f"{row['series']} in {row['category']} ({interval(row, 'acceptance_length')})" for _, row in best.iterrows()
        ]
        yield f"At temperature {temperature:g} the highest acceptance lengths are those of {', '.join(told)}."


def _pictures(found: pd.DataFrame, where: str) -> Iterator[Picture]:
    timed = found if found.empty else found[found["speedup"].notna()]
    if len(timed):
        figure = speedup_by_category(timed.assign(drafter=timed["series"]))
        yield Picture("speedup_by_category", figure, "Which drafter pays on which prompts?", f"{SPEEDUP} {where}")


if __name__ == "__main__":
    main("drafters", build)
