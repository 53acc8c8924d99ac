"""How all figures look, and the pieces that they share.

Figures are made without pyplot, so that nothing is left open and no window system is needed.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from contextlib import contextmanager

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

INK, GREY, PALE, BAND = "#222222", "#767676", "#dddddd", "#9fcfee"
# Okabe and Ito's colours, which are told apart with any colour vision; markers tell series apart in grey print.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = ("o", "s", "D", "^", "v", "P", "X")
DASHED = (0, (4, 3))
WIDTH = 6.0  # inches: the text width of a one-column paper
STYLE = {
    "font.family": "DejaVu Sans",  # comes with matplotlib, so that figures look alike on every machine
    "font.size": 8,
    "mathtext.fontset": "dejavusans",
    "axes.titlesize": 8.5,
    "axes.titlelocation": "left",
    "axes.grid.axis": "y",
    "grid.color": "#ebebeb",
    "lines.linewidth": 1.3,
    "lines.markersize": 5,
    "lines.markeredgecolor": "white",
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


@contextmanager
def style() -> Generator[None]:
    """The rcParams under which figures are made (as a decorator); save them under it too."""
    with mpl.rc_context(STYLE):  # ty: ignore[invalid-argument-type]
        yield


def panels(
    count: int, columns: int, size: tuple[float, float], margin: float = 0, sharey: bool = True
) -> tuple[Figure, list[Axes]]:
    """A figure of ``count`` panels in rows of at most ``columns``; inches a panel, and above and below all of them."""
    columns = min(columns, count)
    rows = math.ceil(count / columns)
    figure = Figure(figsize=(max(size[0] * columns, WIDTH / 2), size[1] * rows + margin), layout="constrained")
    grid = list(figure.subplots(rows, columns, sharey=sharey, squeeze=False).flat)
    for empty in grid[count:]:
        empty.remove()
    return figure, grid[:count]


def legend(figure: Figure, columns: int = 4) -> None:
    """One legend for all panels, outside of them."""
    every = [axes.get_legend_handles_labels() for axes in figure.axes]
    named = {label: handle for handles, labels in every for handle, label in zip(handles, labels, strict=True)}
    figure.legend(named.values(), named.keys(), loc="outside upper left", ncols=min(len(named), columns))
