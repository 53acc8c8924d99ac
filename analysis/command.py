"""The command line of an analysis: ``python -m specbench.analysis.X [RUN_DIR]``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from specbench.core.errors import SpecbenchError
from specbench.reports import Report, markdown
from specbench.reports.writing import write

from .folder import find_run

Made = TypeVar("Made")


def of_chosen_run(exp: str, about: str | None, make: Callable[[Path], Made]) -> Made:
    """What ``make`` makes of the run that the command line names; exits with 2 where the run cannot be read."""
    parser = argparse.ArgumentParser(prog=f"python -m {__package__}.{exp}", description=about)
    parser.add_argument("run_dir", metavar="RUN_DIR", nargs="?", type=Path, help=f"default: outputs/{exp}/latest")
    try:
        return make(find_run(exp, parser.parse_args().run_dir))
    except SpecbenchError as error:
        print(error, file=sys.stderr)
        sys.exit(2)


def main(exp: str, build: Callable[[Path], Report], brief: Callable[[Report], pd.DataFrame] | None = None) -> None:
    """Writes the report of the run that the command line names, and prints a table and where the report lies.

    Args:
        exp: the experiment.
        build: its report.
        brief: a table that fits a terminal, of the report; None for the report's first one as it stands in table.md.
    """

    def written(run_dir: Path) -> tuple[Report, Path]:
        report = build(run_dir)
        return report, write(report, run_dir)

    report, path = of_chosen_run(exp, sys.modules[build.__module__].__doc__, written)
    if brief is None:
        print(f"{markdown.table(report.tables[0].shown)}\n")
    else:
        _show(brief(report))
    print(path)


def _show(rendered: pd.DataFrame) -> None:
    shown = Table(*rendered.columns, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for row in rendered.itertuples(index=False):
        shown.add_row(*map(Text, row))  # Text, since rich would read brackets in a string as markup
    Console().print(shown)
