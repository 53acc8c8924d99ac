"""The command line of an analysis: ``python -m specbench.analysis.X [RUN_DIR]``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import pandas as pd
from rich.console import Console

from specbench.core.errors import SpecbenchError
from specbench.reports import Report, markdown
from specbench.reports.writing import write
from specbench.runs.summary import print_table

from .folder import find_run


def main(
    exp: str,
    build: Callable[..., Report],
    brief: Callable[[Report], pd.DataFrame] | None = None,
    several: bool = False,
) -> None:
    """Writes the report of the run that the command line names, and prints a table and the report's path.

    Exits with 2 if the run cannot be read.

    Args:
        exp: the experiment.
        build: its report.
        brief: a table that fits a terminal, of the report; None for the report's first one as it stands in table.md.
        several: whether ``build`` takes several runs, or files; the report is written into the folder of the first.
    """
    about = sys.modules[build.__module__].__doc__
    parser = argparse.ArgumentParser(prog=f"python -m {__package__}.{exp}", description=about)
    nargs = "*" if several else "?"
    parser.add_argument("run_dir", metavar="RUN_DIR", nargs=nargs, type=Path, help=f"default: outputs/{exp}/latest")
    given = parser.parse_args().run_dir
    try:
        runs = [
            run if several and run is not None and run.is_file() else find_run(exp, run)
            for run in (given if several and given else [given or None])
        ]
        report = build(*runs)
        path = write(report, runs[0] if runs[0].is_dir() else runs[0].parent)
    except SpecbenchError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    if brief is None:
        print(f"{markdown.table(report.tables[0].shown)}\n")
    else:
        print_table(brief(report), to=Console())
    print(path)
