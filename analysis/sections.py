"""Reports that are no decode sweeps: a page of sections, and the command line that prints where it lies."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pandas as pd

from specbench import results
from specbench.errors import ConfigError

from . import pages
from .pages import Illustration, markdown, write_figures
from .report import where_it_ran


def read_rows(run_dir: Path) -> pd.DataFrame:
    """The rows of a run.

    Raises:
        ConfigError: a folder without any.
    """
    rows = results.read_results(run_dir)
    if rows.empty:
        raise ConfigError("RUN_DIR", run_dir, "its results.parquet is empty", "Look for failed jobs; run it again.")
    return rows


def read_table(run_dir: Path, name: str, rows: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    """A table of all jobs, each line with the given columns of its job's row.

    Raises:
        ConfigError: no job left such a table.
    """
    table = results.read_jobs(run_dir, name)
    if table.empty:
        raise ConfigError("RUN_DIR", run_dir, f"no {name} in its jobs", "Give the folder of a run of this experiment.")
    return table.merge(rows[["job", *columns]], on="job")


def write_page(
    run_dir: Path,
    title: str,
    question: str,
    findings: Sequence[str],
    table: pd.DataFrame,
    note: str,
    illustrations: Iterable[Illustration],
    rows: pd.DataFrame,
    unrounded: pd.DataFrame,
) -> Path:
    """Writes report.md, table.md and table.csv and the figures under ``run_dir``/report; returns report.md's path."""
    folder = run_dir / "report"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "table.md").write_text(markdown(table) + "\n", encoding="utf-8")
    unrounded.to_csv(folder / "table.csv", index=False)
    sections = [
        f"# {title}\n\n{question}",
        "## Result\n\n" + "\n\n".join(filter(None, findings)),
        f"## Table\n\n{markdown(table)}\n\n{note}",
        f"## Figures\n\n{write_figures(folder, illustrations)}",
        f"## Where it ran\n\n{where_it_ran(rows)}",
    ]
    return pages.write_page(folder, sections)


def main(exp: str, build: Callable[[Path], Path]) -> None:
    """The command line of a report: prints its table and where it lies."""
    path = pages.of_chosen_run(exp, sys.modules[build.__module__].__doc__, build)
    print((path.parent / "table.md").read_text(encoding="utf-8"))
    print(path)
