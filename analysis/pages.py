"""What the reports of all protocols share: finding a run, numbers as text, tables and figures on disk, the command."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pandas as pd
from matplotlib.figure import Figure
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from specbench import rounding
from specbench.errors import ConfigError, SpecbenchError
from specbench.metrics.intervals import CONFIDENCE, FEW, coverage
from specbench.plots.style import style
from specbench.runs.plan import LATEST, OUTPUTS, PLAN, find_sweep
from specbench.runs.status import partial

NONE = "-"


Made = TypeVar("Made")


def find_run(exp: str, run_dir: Path | None) -> Path:
    """The folder to report on; the newest run of the experiment under the current directory if none is given.

    Raises:
        ConfigError: there is no such folder.
    """
    folder = OUTPUTS / exp / LATEST if run_dir is None else run_dir
    if run_dir is None and not folder.is_dir() and any(OUTPUTS.glob(f"{exp}/*/{PLAN}")):
        return find_sweep(LATEST, exp)  # a file system without links, or a sweep of which nothing is done yet
    if not folder.is_dir():
        remedy = f"Run python -m specbench +exp={exp} first, or give the folder of a run."
        raise ConfigError("RUN_DIR", folder, "no such folder", remedy)
    return folder


def number(value: float | None, form: str = ".2f") -> str:
    """A number as text; a dash for None and NaN."""
    return NONE if pd.isna(value) else format(value, form)


def few_units(units: Mapping[str, int]) -> str:
    """A sentence on intervals by bootstrap over few units, given how many of each kind; empty where all are enough.

    Args:
        units: such as {"prompts": 12}.
    """
    few = [
        f"{name} number {count}, with which a nominal {CONFIDENCE:.0%} holds about {coverage(count):.0%}"
        if count > 1
        else f"{name} number {count}, which gives no interval"
        for name, count in units.items()
        if count < FEW
    ]
    return f"Intervals over few units are too narrow: {'; '.join(few)}." if few else ""


def interval(row: pd.Series, name: str, form: str = ".2f") -> str:
    """An estimate with its 95% interval: ``0.61 [0.58, 0.64]``; alone where there was one unit to resample."""
    value, low, high = (row[name + suffix] for suffix in ("", "_low", "_high"))
    return NONE if pd.isna(value) else rounding.interval(value, low, high, form)


def plain(value: object) -> str:
    """A setting as text: 1 for 1.0, a dash for what rows do not have."""
    if pd.isna(value):
        return NONE
    return f"{value:g}" if isinstance(value, float) else str(value)


def values(results: pd.DataFrame, column: str) -> str:
    """Every value that a column has, in order."""
    return ", ".join(dict.fromkeys(results[column].map(plain)))


def write_table(folder: Path, name: str, rendered: pd.DataFrame, left: Iterable[str] = ()) -> None:
    """NAME.md and NAME.tex (needs the LaTeX package booktabs), as rendered; the columns ``left`` are left-aligned."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.md").write_text(markdown(rendered) + "\n", encoding="utf-8")
    aligned = set(left)
    form = "".join("l" if column in aligned else "r" for column in rendered)
    latex = rendered.to_latex(index=False, escape=True, column_format=form)
    (folder / f"{name}.tex").write_text("% \\usepackage{booktabs}\n" + latex + "\n", encoding="utf-8")


def markdown(rendered: pd.DataFrame) -> str:
    """A rendered table as Markdown; numbers stay as they are written in it."""
    return rendered.to_markdown(index=False, disable_numparse=True)


@dataclass(frozen=True)
class Illustration:
    """A figure of a report: file name, drawing, and how to read it."""

    name: str
    figure: Figure
    reading: str


def write_figures(folder: Path, illustrations: Iterable[Illustration]) -> str:
    """Saves each under ``folder``/figures as PDF and PNG; returns the Markdown that shows them."""
    (folder / "figures").mkdir(parents=True, exist_ok=True)
    shown = []
    for each in illustrations:
        with style():
            # Without a date, the same rows give the same bytes.
            each.figure.savefig(folder / "figures" / f"{each.name}.pdf", metadata={"CreationDate": None})
            each.figure.savefig(folder / "figures" / f"{each.name}.png")
        title = each.name.replace("_", " ").capitalize()
        shown.append(f"### {title}\n\n![{title}](figures/{each.name}.png)\n\n{each.reading}")
    return "\n\n".join(shown)


def write_page(folder: Path, sections: Iterable[str]) -> Path:
    """report.md of some sections; returns its path. Below its title stands how much of its sweep it is of, if not all.

    Args:
        folder: ``report`` in the sweep's folder.
    """
    title, *rest = "\n\n".join(sections).split("\n\n")
    missing = partial(folder.parent)
    path = folder / "report.md"
    path.write_text("\n\n".join([title, *([f"**{missing}**"] if missing else []), *rest]) + "\n", encoding="utf-8")
    return path


def of_chosen_run(exp: str, about: str | None, make: Callable[[Path], Made]) -> Made:
    """What ``make`` makes of the run that the command line names; exits with 2 where the run cannot be read."""
    parser = argparse.ArgumentParser(prog=f"python -m {__package__}.{exp}", description=about)
    parser.add_argument("run_dir", metavar="RUN_DIR", nargs="?", type=Path, help=f"default: outputs/{exp}/latest")
    try:
        return make(find_run(exp, parser.parse_args().run_dir))
    except SpecbenchError as error:
        print(error, file=sys.stderr)
        sys.exit(2)


def command_line(exp: str, build: Callable[[Path], Path], brief: Callable[[Path], pd.DataFrame]) -> None:
    """The command line of a report: prints a brief table of the run and where the report lies."""
    about = sys.modules[build.__module__].__doc__
    path, rendered = of_chosen_run(exp, about, lambda run_dir: (build(run_dir), brief(run_dir)))
    shown = Table(*rendered.columns, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for row in rendered.itertuples(index=False):
        shown.add_row(*map(Text, row))  # Text, since rich would read brackets in a string as markup
    Console().print(shown)
    print(path)
