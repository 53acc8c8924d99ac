"""What does a draft with another tokenizer accept, restricted to the shared tokens or matched as text?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from specbench.metrics.columns import Column, typed_row
from specbench.metrics.run_row import RunRow
from specbench.metrics.run_settings import distinguishing_columns, with_settings
from specbench.reports import Report, Table, cells
from specbench.reports.cells import Run

from .command import main
from .decoding import latency
from .folder import read_rows
from .page import page

SETTINGS: list[Column] = [Run.temperature, Run.draft, Run.drafter]
SHARED = ("shared tokens", "shared mass")
MEASURED = (*SHARED, "overlap", "acceptance rate", "acceptance length", "tokens/s", "speedup")


def build(run_dir: Path) -> Report:
    """The report of a run."""
    rows = read_rows(run_dir, *SETTINGS, Run.acceptance_length)
    rows = rows.sort_values([Run.temperature, Run.job], kind="stable", ignore_index=True)
    shown_rows = with_settings(rows)
    settings = [*SETTINGS, *distinguishing_columns(shown_rows, *SETTINGS)]
    shown = {
        "table": Table("table", cells.table(shown_rows, [*settings, *MEASURED]), rows, left=("draft", "drafter")),
        **latency(shown_rows, settings),
    }
    return page(run_dir, rows, "vocabularies", shown, best=list(best_of(rows)))


def best_of(rows: pd.DataFrame) -> Iterator[tuple[RunRow, RunRow | None]]:
    """For each temperature the greatest acceptance length with another vocabulary, and with the target's own."""
    for _, group in rows.groupby(Run.temperature, sort=True):
        other = group[Run.shared_mass].notna()
        best, usual = (
            typed_row(runs.loc[runs[Run.acceptance_length].idxmax()], RunRow) if len(runs) else None
            for runs in (group[other], group[~other])
        )
        if best is not None:
            yield best, usual


if __name__ == "__main__":
    main("vocabularies", build)
