"""What do drafters gain and cost, by category of prompt?"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from specbench.metrics.results import RESULT_SCHEMA
from specbench.metrics.run_settings import distinguishing_columns
from specbench.reports import Report, Table, cells, winner
from specbench.reports.between import tokens_a_step
from specbench.reports.cells import plain
from specbench.reports.plots.comparisons import speedup_by_category

from .command import main
from .decoding import by_category, latency, read_categories, read_run
from .page import page

SETTINGS = ["temperature", "drafter"]
MEASURED = ("tokens drafted", "acceptance rate", "acceptance length", "draft share", "speedup")


def build(run_dir: Path) -> Report:
    """The report of a comparison of drafters."""
    rows = read_run(run_dir, *SETTINGS, needed="drafted_per_step")
    settings = [*SETTINGS, *distinguishing_columns(rows, *SETTINGS)]
    categories = read_categories(run_dir, rows, [*settings, "series"])
    timed = categories[categories["speedup"].notna()] if len(categories) else categories
    names = [f"{row['series']} at temperature {plain(row['temperature'])}" for _, row in rows.iterrows()]
    columns = dict.fromkeys([*SETTINGS, "verifier", *settings, *MEASURED])
    shown = {
        "table": Table("table", cells.table(rows, columns), rows[RESULT_SCHEMA.names], left=("drafter", "verifier")),
        **latency(rows, settings),
        **by_category(categories.drop(columns="series", errors="ignore"), rows, settings),
        "speedup_by_category": speedup_by_category(timed) if len(timed) else None,
    }
    return page(
        run_dir,
        rows,
        "drafters",
        shown,
        fastest=winner.fastest(rows, names),
        best_rows=best_by_category(categories),
        verdicts=tokens_a_step(run_dir, rows, [name for name in settings if name != "verifier"]),
        categories=categories,
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
