"""The command line of an analysis: ``python -m specbench.analysis.X [RUN_DIR]``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path

from specbench.core.errors import SpecbenchError
from specbench.reports import Report, markdown
from specbench.reports.writing import write

from .folder import find_run


def main(exp: str, build: Callable[..., Report], several: bool = False) -> None:
    """Writes the report of the run that the command line names, and prints its first table and its path.

    Exits with 2 if the run cannot be read, or the report cannot be written into its folder.

    Args:
        exp: the experiment.
        build: its report.
        several: whether ``build`` takes several runs, or files; the report is written into the folder of the first.
    """
    about = sys.modules[build.__module__].__doc__
    parser = argparse.ArgumentParser(prog=f"python -m {__package__}.{exp}", description=about)
    nargs = "*" if several else "?"
    parser.add_argument("run_dir", metavar="RUN_DIR", nargs=nargs, type=Path, help=f"default: outputs/{exp}/latest")
    paths = parser.parse_args().run_dir
    try:
        runs = [
            run if several and run is not None and run.is_file() else find_run(exp, run)
            for run in (paths if several and paths else [paths or None])
        ]
        report = build(*runs)
        path = write(report, runs[0] if runs[0].is_dir() else runs[0].parent)
    except SpecbenchError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    try:
        for table in report.tables[:1]:
            print(f"{markdown.table(table.shown)}\n")
        print(path, flush=True)
    except BrokenPipeError:  # the reader of the output has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
