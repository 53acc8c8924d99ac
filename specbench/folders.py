"""What a sweep and its jobs leave in their folders."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pandas as pd

from specbench import plots, results
from specbench.errors import ConfigError
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
    """The job's parquet files; the row last, so that a folder with a row is complete."""
    results.write_rows(folder / results.STEPS, outcome.steps, results.STEP_SCHEMA)
    results.write_rows(folder / results.EMPIRICAL, outcome.empirical, results.EMPIRICAL_SCHEMA)
    results.write_rows(folder / results.TEXTS, outcome.texts, results.TEXT_SCHEMA)
    details = {
        key: getattr(row, key)
        for key in ("created", "commit", "hardware", "threads", "device", "python", "torch", "transformers")
    }
    (folder / "environment.json").write_text(json.dumps(details, indent=1))
    results.write_rows(folder / results.RESULTS, [row], results.RESULT_SCHEMA)


def draw_figures(folder: Path, label: str, row: results.RunRow, outcome: Outcome) -> None:
    """The job's figures as PNG, in its folder."""
    figures = {
        "acceptance_histogram": plots.acceptance_histogram(row.acceptance_histogram, label),
        "position_rates": plots.position_rates(row.joint_rates, row.conditional_rates),
    }
    if outcome.empirical:
        figures["empirical_against_target"] = plots.empirical_against_target(pd.DataFrame(outcome.empirical))
    for name, figure in figures.items():
        figure.savefig(folder / f"{name}.png", dpi=150)
