"""What does a draft with another tokenizer accept, restricted to the shared tokens or matched as text?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from specbench.metrics.run_settings import distinguishing_columns, with_settings
from specbench.reports import Report, Table, cells

from .command import main
from .decoding import latency
from .folder import read_rows
from .page import page

SETTINGS = ["temperature", "draft", "drafter"]
SHARED = ("shared tokens", "shared mass")
MEASURED = (*SHARED, "overlap", "acceptance rate", "acceptance length", "tokens/s", "speedup")


def build(run_dir: Path) -> Report:
    """The report of a run."""
    rows = read_rows(run_dir, "draft", "drafter", "temperature", "acceptance_length")
    rows = rows.sort_values(["temperature", "job"], kind="stable", ignore_index=True)
    shown_rows = with_settings(rows)
    settings = [*SETTINGS, *distinguishing_columns(shown_rows, *SETTINGS)]
    shown = {
        "table": Table("table", cells.table(shown_rows, [*settings, *MEASURED]), rows, left=("draft", "drafter")),
        **latency(shown_rows, settings),
    }
    return page(run_dir, rows, "vocabularies", shown, best=list(best_of(rows)))


def best_of(rows: pd.DataFrame) -> Iterator[tuple[float, pd.Series, pd.Series | None]]:
    """For each temperature the greatest acceptance length with another vocabulary, and with the target's own."""
    for temperature, group in rows.groupby("temperature", sort=True):
        other = group["shared_mass"].notna()
        best, usual = (
            rows.loc[rows["acceptance_length"].idxmax()] if len(rows) else None
            for rows in (group[other], group[~other])
        )
        if best is not None:
            yield temperature, best, usual  # ty: ignore[invalid-yield]


if __name__ == "__main__":
    main("vocabularies", build)
