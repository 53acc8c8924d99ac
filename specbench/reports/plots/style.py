"""How all figures look, and the pieces that they share; looks.py says how their series do.

Figures are made without pyplot, so that nothing is left open and no window system is needed. They are drawn for a page,
the report's own unless :func:`drawn_for` says another: at that page's width and in its fonts from the first stroke on,
since a figure that is scaled afterwards has letters of another size than the text around it.
"""

import math
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from textwrap import fill
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text

from specbench.metrics.columns import Column
from specbench.reports.plots.looks import Look

INK, GREY, PALE, BAND = "#222222", "#767676", "#dddddd", "#9fcfee"
NARROWEST = 1.5  # inches of a panel whose axis can still be read
LEGEND_ROW, LEGEND_ROWS = 0.176, 2  # inches, at the font size of a legend; rows that a figure has room for as it is
LABEL_SHARE = 0.85  # of a figure's width that the label of a legend may take beside its mark
STYLE = {
    "font.size": 8,
    "axes.titlesize": 8.5,
    "axes.titlelocation": "left",
    "axes.grid.axis": "y",
    "grid.color": "#ebebeb",
    "lines.linewidth": 1.3,
    "lines.markersize": 5,
    "lines.markeredgecolor": "white",
    "hatch.linewidth": 0.6,
    "legend.handlelength": 1.6,
    "legend.columnspacing": 1.4,
    "savefig.dpi": 200,
    "pdf.fonttype": 42,  # embeds TrueType; journals refuse matplotlib's default, Type 3
    **dict.fromkeys(("axes.spines.top", "axes.spines.right", "legend.frameon"), False),
    **dict.fromkeys(("axes.axisbelow", "axes.grid"), True),
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK),
    **dict.fromkeys(
        ("axes.linewidth", "grid.linewidth", "lines.markeredgewidth", "xtick.major.width", "ytick.major.width"), 0.6
    ),
    **dict.fromkeys(("xtick.major.size", "ytick.major.size"), 2.5),
}


@dataclass(frozen=True)
class Page:
    """What figures are drawn for.

    Attributes:
        width: inches of its text.
        font: of its letters, a family that matplotlib finds.
        mathtext: matplotlib's set of fonts for formulas that goes with it.
        filled: whether a figure is as wide as the page, whatever it shows; else as wide as its panels ask for.
    """

    width: float = 6.0
    font: str = "DejaVu Sans"  # comes with matplotlib, so that figures look alike on every machine
    mathtext: str = "dejavusans"
    filled: bool = False


REPORT = Page()
_PAGE: ContextVar[Page] = ContextVar("page", default=REPORT)


@contextmanager
def drawn_for(page: Page) -> Generator[None]:
    """Figures are made, and saved, for this page."""
    token = _PAGE.set(page)
    try:
        yield
    finally:
        _PAGE.reset(token)


@contextmanager
def style() -> Generator[None]:
    """The rcParams under which figures are made (as a decorator); save them under it too."""
    page = _PAGE.get()
    with mpl.rc_context({**STYLE, "font.family": page.font, "mathtext.fontset": page.mathtext}):  # ty: ignore[invalid-argument-type]
        yield


def width(share: float) -> float:
    """Inches of a figure that asks for a share of its page."""
    page = _PAGE.get()
    return page.width * (1 if page.filled else share)


def panels(
    count: int, columns: int, size: tuple[float, float], margin: float = 0, sharey: bool = True
) -> tuple[Figure, list[Axes]]:
    """A figure of panels.

    Args:
        count: of panels, in rows of at most ``columns``; of fewer where the page is narrow.
        size: of a panel: its width as a share of the page, and its height in inches.
        margin: inches above and below all of them.
    """
    columns = min(columns, count, max(1, int(_PAGE.get().width / NARROWEST)))
    rows = math.ceil(count / columns)
    inches = (width(max(size[0] * columns, 0.5)), size[1] * rows + margin)
    figure = Figure(figsize=inches, layout="constrained")
    grid = list(figure.subplots(rows, columns, sharey=sharey, squeeze=False).flat)
    for empty in grid[count:]:
        empty.remove()
    return figure, grid[:count]


def left_label(every_axes: Iterable[Axes], text: str) -> None:
    """The label of y axes, at the first panel of each row: one of the whole figure would stand beside its legend."""
    for axes in every_axes:
        place = axes.get_subplotspec()
        if place is not None and place.is_first_col():
            axes.set_ylabel(text)


def with_legend(figure: Figure, columns: int = 4) -> Figure:
    """The figure with one legend for all panels, outside of them, in as many columns as fit, up to ``columns``.

    The figure grows with the rows that this takes beyond those of ``columns``, or beyond LEGEND_ROWS, so that panels
    keep their height.
    Labels that are wider than the figure are broken into lines.
    """
    every = [axes.get_legend_handles_labels() for axes in figure.axes]
    named = {label: handle for handles, labels in every for handle, label in zip(handles, labels, strict=True)}
    if not named:
        return figure
    most_columns = min(len(named), columns)
    for ncols in range(most_columns, 0, -1):
        shown = figure.legend(named.values(), named.keys(), loc="outside upper left", ncols=ncols)
        if ncols == 1 or shown.get_window_extent().width / figure.dpi <= figure.get_figwidth():
            break
        shown.remove()
    rows = math.ceil(len(named) / ncols)
    if ncols == 1:
        rows = sum(broken(label, LABEL_SHARE * figure.get_figwidth()) for label in shown.get_texts())
    more = rows - min(math.ceil(len(named) / most_columns), LEGEND_ROWS)
    figure.set_figheight(figure.get_figheight() + more * LEGEND_ROW)
    return figure


def ends(rows: pd.DataFrame, column: Column) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The values of a column ``x``, and the ends of their intervals, ``x_low`` and ``x_high``."""
    value, low, high = (rows[f"{column}{end}"].to_numpy(dtype=float) for end in ("", "_low", "_high"))
    return value, low, high


def draw_points(axes: Axes, x: Any, rows: pd.DataFrame, column: Column, name: str, **look: Any) -> None:
    """Values and the bars of their intervals, which lie below points that stand alone, and over lines.

    Args:
        x: where the rows stand.
        look: of the points, as ``Look.points``, or ``Look.line`` to join them.
    """
    value, low, high = ends(rows, column)
    alone = look["linestyle"] == "none"
    if alone:
        axes.vlines(x, low, high, color=look["color"], linewidth=1)
    axes.plot(x, value, label=name, **look)
    if not alone:
        axes.vlines(x, low, high, color=look["color"], linewidth=1)


def draw_band(axes: Axes, x: Any, rows: pd.DataFrame, column: Column, name: str, look: Look) -> None:
    """A curve, and the band of its intervals."""
    value, low, high = ends(rows, column)
    axes.plot(x, value, label=name, **look.curve)
    axes.fill_between(x, low, high, color=look.colour, alpha=0.18, linewidth=0)


def broken(text: Text, inches: float) -> int:
    """Breaks a text into lines that are at most ``inches`` wide, and returns how many there are."""
    figure = text.get_figure(root=True)
    wide = 0.0 if figure is None else text.get_window_extent().width / figure.dpi
    if wide > inches:
        lines = fill(text.get_text(), max(1, int(len(text.get_text()) * inches / wide)))
        text.set_text(lines.replace("\\\n$", "\n\\$"))  # a dollar sign and the backslash before it stay together
    return text.get_text().count("\n") + 1


def literal(name: str) -> str:
    """A name as labels show it: between two dollar signs matplotlib would read a formula."""
    return visible(name).replace("$", r"\$")


def visible(text: str) -> str:
    """A text whose characters beyond Latin, which the figures' font may lack, are escaped."""
    return "".join(c if ord(c) < 0x250 or c == "…" else ascii(c)[1:-1] for c in text)
