"""A report on disk: pages, tables and figures in one folder, each written as its reader needs it."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure

from specbench.plots.style import style
from specbench.reports import html, markdown
from specbench.reports.latex.numbers import Typed
from specbench.reports.latex.tables import tabular
from specbench.reports.model import Report, Table

REPORT = "report"


def write(report: Report, run_dir: Path) -> Path:
    """Writes report.md, report.html, tables and figures under ``run_dir``/report; the same report gives the same bytes.

    A table NAME is NAME.md, NAME.tex (needs the LaTeX package booktabs) and, unrounded, NAME.csv; a figure NAME is
    figures/NAME.pdf and .png.

    Returns:
        The path of report.md.
    """
    folder = run_dir / REPORT
    folder.mkdir(parents=True, exist_ok=True)
    for table in report.tables:
        _write_table(folder, table)
    for name, frame in report.data.items():
        frame.to_csv(folder / f"{name}.csv", index=False)
    for picture in report.pictures:
        save(picture.figure, folder / "figures", picture.name)
    path = folder / "report.md"
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


def _write_table(folder: Path, table: Table) -> None:
    (folder / f"{table.name}.md").write_text(markdown.table(table.shown) + "\n", encoding="utf-8")
    latex = tabular(table, table.name, Typed())
    (folder / f"{table.name}.tex").write_text(f"% \\usepackage{{booktabs}}\n{latex}\n", encoding="utf-8")
    if table.raw is not None:
        table.raw.to_csv(folder / f"{table.name}.csv", index=False)
