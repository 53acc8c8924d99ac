"""What a sweep and its jobs leave in their folders."""

from __future__ import annotations

import json
import os
from pathlib import Path

from specbench import results
from specbench.errors import ConfigError
from specbench.plots.style import style
from specbench.protocols import Outcome


def begin_sweep(sweep: Path) -> None:
    """Makes ``outputs/<exp>/latest`` a link to this sweep, replacing the old link in one step.

    Raises:
        ConfigError: a folder that holds an earlier sweep, whose rows would be mixed with the new ones.
    """
    if (sweep / results.RESULTS).exists():
        raise ConfigError(
            "hydra.sweep.dir", sweep, "holds an earlier sweep", "Choose another folder, or move that one."
        )
    temporary = sweep.parent / f".latest.{os.getpid()}"
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(sweep.name, target_is_directory=True)
    os.replace(temporary, sweep.parent / "latest")


def write_tables(folder: Path, row: results.RunRow, outcome: Outcome) -> None:
    """The job's parquet files and documents; the row last, so that a folder with a row is complete."""
    for name, table in outcome.tables.items():
        results.write_rows(folder / name, table.rows, table.schema)
    for name, text in outcome.documents.items():
        (folder / name).write_text(text)
    details = {
        key: getattr(row, key)
        for key in ("created", "commit", "hardware", "threads", "device", "python", "torch", "transformers")
    }
    (folder / "environment.json").write_text(json.dumps(details, indent=1))
    results.write_rows(folder / results.RESULTS, [row], results.RESULT_SCHEMA)


def draw_figures(folder: Path, outcome: Outcome) -> None:
    """The job's figures as PNG, in its folder."""
    with style():
        for name, figure in outcome.figures.items():
            figure.savefig(folder / f"{name}.png", dpi=150)
