"""What a job leaves in its folder."""

from __future__ import annotations

from pathlib import Path

from specbench.core.machine.disk import write_json, write_text
from specbench.metrics import results
from specbench.protocols import Outcome
from specbench.reports.plots.style import style


def write_tables(folder: Path, row: results.RunRow, outcome: Outcome) -> None:
    """The job's parquet files and documents; the row last, so that a folder with a row is whole. Raises WriteError."""
    for name, table in outcome.tables.items():
        results.write_rows(folder / name, table.rows, table.schema)
    for name, text in outcome.documents.items():
        write_text(folder / name, text)
    details = {
        key: getattr(row, key)
        for key in ("created", "version", "commit", "hardware", "threads", "device", "python", "torch", "transformers")
    }
    write_json(folder / "environment.json", details)
    results.write_rows(folder / results.RESULTS, [row], results.RESULT_SCHEMA)


def draw_figures(folder: Path, outcome: Outcome) -> None:
    """The job's figures as PNG, in its folder."""
    with style():
        for name, figure in outcome.figures.items():
            figure.savefig(folder / f"{name}.png", dpi=150)
