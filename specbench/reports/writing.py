"""A report on disk: pages, tables and figures in one folder, each written as its reader needs it."""

import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from specbench.core.machine.disk import writing
from specbench.reports import html, markdown
from specbench.reports.latex.numbers import Typed
from specbench.reports.latex.tables import tabular
from specbench.reports.model import Report, Table
from specbench.reports.plots.style import style

REPORT = "report"


def write(report: Report, run_dir: Path) -> Path:
    """Writes report.md, report.html, tables and figures under ``run_dir``/report; the same report gives the same bytes.

    A table NAME is NAME.md, NAME.tex (needs the LaTeX package booktabs) and, unrounded, NAME.csv; a figure NAME is
    figures/NAME.pdf and .png.

    Returns:
        The path of report.md.

    Raises:
        WriteError: the folder cannot be written.
    """
    folder = run_dir / REPORT
    path = folder / "report.md"
    with writing(folder, "Free space there, make it writable, or copy the run to where a report can be written."):
        folder.mkdir(parents=True, exist_ok=True)
        for table in report.tables:
            _write_table(folder, table)
        for name, frame in report.data.items():
            write_csv(frame, folder / f"{name}.csv")
        for picture in report.pictures:
            save(picture.figure, folder / "figures", picture.name)
        path.write_text(markdown.render(report), encoding="utf-8")
        path.with_suffix(".html").write_text(html.render(report), encoding="utf-8")
    return path


def save(figure: Figure, folder: Path, name: str) -> None:
    """A figure as PDF and PNG."""
    folder.mkdir(parents=True, exist_ok=True)
    with style():
        # Without a date, the same rows give the same bytes.
        figure.savefig(folder / f"{name}.pdf", metadata={"CreationDate": None})
        figure.savefig(folder / f"{name}.png")


def write_csv(frame: pd.DataFrame, path: Path) -> None:
    """A table as CSV, unrounded. A list is written as JSON, which any program reads; numpy's form has no commas."""
    lists = [name for name in frame if frame[name].map(lambda value: isinstance(value, list | np.ndarray)).any()]
    frame.assign(**{str(name): frame[name].map(_as_json) for name in lists}).to_csv(path, index=False)


def _as_json(value: object) -> object:
    if not isinstance(value, list | np.ndarray):
        return value
    items = value.tolist() if isinstance(value, np.ndarray) else value
    return json.dumps([None if isinstance(item, float) and math.isnan(item) else item for item in items])


def _write_table(folder: Path, table: Table) -> None:
    (folder / f"{table.name}.md").write_text(markdown.table(table.shown) + "\n", encoding="utf-8")
    latex = tabular(table, table.name, Typed())
    (folder / f"{table.name}.tex").write_text(f"% \\usepackage{{booktabs}}\n{latex}\n", encoding="utf-8")
    if table.raw is not None:
        write_csv(table.raw, folder / f"{table.name}.csv")
