"""What do drafters gain and cost, by category of prompt?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from specbench.metrics.run_settings import distinguishing_columns, with_settings
from specbench.reports import Report, Table, cells, winner
from specbench.reports.between import tokens_a_step
from specbench.reports.cells import number, plain
from specbench.reports.plots.comparisons import speedup_by_category

from .command import main
from .decoding import by_category, latency, read_categories
from .folder import read_rows
from .page import page, words

SETTINGS = ["temperature", "drafter"]


def build(run_dir: Path) -> Report:
    """The report of a comparison of drafters."""
    rows = read_rows(run_dir, "speedup", "drafted_per_step").sort_values(["temperature", "job"])
    labelled = with_settings(rows)
    further = distinguishing_columns(labelled, *SETTINGS)  # in what else runs of this sweep differ
    settings = [*SETTINGS, *further]
    # What sentences and the figure call a run, its temperature apart.
    labelled["series"] = [
        ", ".join([row["drafter"], *(f"{name} {plain(row[name])}" for name in further)])
        for _, row in labelled.iterrows()
    ]
    categories = read_categories(run_dir, labelled, settings)
    if len(categories):
        categories["series"] = categories["job"].map(labelled.set_index("job")["series"])
    timed = categories[categories["speedup"].notna()] if len(categories) else categories
    figure = speedup_by_category(timed.assign(drafter=timed["series"])) if len(timed) else None
    names = [f"{row['series']} at temperature {plain(row['temperature'])}" for _, row in labelled.iterrows()]
    shown = {
        "table": Table("table", overall_table(labelled, further), rows, left=("drafter", "verifier")),
        **latency(labelled, settings),
        **by_category(categories.drop(columns="series", errors="ignore"), labelled, settings),
        "speedup_by_category": figure,
    }
    return page(
        run_dir,
        "drafters",
        shown,
        warning=words("shared.synthetic", rows),
        rows=rows,
        fastest=winner.fastest(labelled, names),
        best_rows=best_by_category(categories),
        verdicts=tokens_a_step(run_dir, labelled, [name for name in settings if name != "verifier"]),
        machine=winner.machine(rows),
        categories=categories,
    )


def overall_table(rows: pd.DataFrame, further: Sequence[str]) -> pd.DataFrame:
    """A line a run.

    Args:
        further: the columns in which runs differ, temperature and drafter apart.
    """
    return cells.shown(
        rows,
        lambda row: {
            **cells.settings(row, dict.fromkeys([*SETTINGS, "verifier", *further])),
            **cells.measured(row, "tokens drafted", "acceptance rate", "acceptance length"),
            "draft share": number(row["seconds_draft"] / row["seconds"], ".1%"),
            **cells.measured(row, "speedup"),
        },
    )


def best_by_category(categories: pd.DataFrame) -> list[tuple[float, pd.DataFrame]]:
    """For each temperature the rows of the highest acceptance length of each category."""
    if categories.empty:
        return []
    groups = (
        (temperature, rows.groupby("category", sort=False)) for temperature, rows in categories.groupby("temperature")
    )
    return [(temperature, categories.loc[by["acceptance_length"].idxmax()]) for temperature, by in groups]  # ty: ignore[invalid-explicit-return]


if __name__ == "__main__":
    main("drafters", build)
