"""What do drafters gain and cost, by category of prompt?"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from specbench.metrics.columns import Column
from specbench.metrics.results import RESULT_SCHEMA
from specbench.metrics.run_settings import distinguishing_columns
from specbench.reports import Report, Table, cells, winner
from specbench.reports.between import tokens_a_step
from specbench.reports.cells import Run, plain
from specbench.reports.plots.comparisons import speedup_by_category

from .command import main
from .decoding import Category, by_category, latency, read_categories, read_run
from .page import page

SETTINGS: list[Column] = [Run.temperature, Run.drafter]
MEASURED = ("tokens drafted", "acceptance rate", "acceptance length", "draft share", "speedup")


def build(run_dir: Path) -> Report:
    """The report of a comparison of drafters."""
    rows = read_run(run_dir, *SETTINGS, needed=Run.drafted_per_step)
    settings = [*SETTINGS, *distinguishing_columns(rows, *SETTINGS)]
    categories = read_categories(run_dir, rows, [*settings, Run.series])
    timed = categories[categories[Category.speedup].notna()] if len(categories) else categories
    named = zip(rows[Run.series], rows[Run.temperature], strict=True)
    names = [f"{series} at temperature {plain(temperature)}" for series, temperature in named]
    columns = dict.fromkeys([*SETTINGS, Run.verifier, *settings, *MEASURED])
    shown = {
        "table": Table("table", cells.table(rows, columns), rows[RESULT_SCHEMA.names], left=("drafter", "verifier")),
        **latency(rows, settings),
        **by_category(categories.drop(columns=Run.series, errors="ignore"), rows, settings),
        "speedup_by_category": speedup_by_category(timed) if len(timed) else None,
    }
    return page(
        run_dir,
        rows,
        "drafters",
        shown,
        fastest=winner.fastest(rows, names),
        best_rows=best_by_category(categories),
        verdicts=tokens_a_step(run_dir, rows, [name for name in settings if name != Run.verifier]),
        categories=categories,
    )


def best_by_category(categories: pd.DataFrame) -> list[pd.DataFrame]:
    """For each temperature the rows of the highest acceptance length of each category."""
    if categories.empty:
        return []
    lengths = (
        rows.groupby(Category.category, sort=False)[Category.acceptance_length]
        for _, rows in categories.groupby(Run.temperature)
    )
    return [categories.loc[of_category.idxmax()] for of_category in lengths]


if __name__ == "__main__":
    main("drafters", build)
