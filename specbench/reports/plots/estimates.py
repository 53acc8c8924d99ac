"""Estimates with their 95% intervals, the same in every figure: points if measured, bands if computed.

The ends of the interval of a column ``x`` are in ``x_low`` and ``x_high``; NaN and None are not drawn.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from specbench.reports.plots.looks import Look


def ends(rows: pd.DataFrame, column: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The values of a column, and the ends of their intervals."""
    value, low, high = (rows[f"{column}{end}"].to_numpy(dtype=float) for end in ("", "_low", "_high"))
    return value, low, high


def draw_points(axes: Axes, x: Any, rows: pd.DataFrame, column: str, name: str, **look: Any) -> None:
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


def draw_band(axes: Axes, x: Any, rows: pd.DataFrame, column: str, name: str, look: Look) -> None:
    """A curve, and the band of its intervals."""
    value, low, high = ends(rows, column)
    axes.plot(x, value, label=name, **look.curve)
    axes.fill_between(x, low, high, color=look.colour, alpha=0.18, linewidth=0)
