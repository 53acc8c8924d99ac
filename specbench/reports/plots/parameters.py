"""What sampling parameters do to acceptance. ``results`` has the columns of results.RunRow."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from specbench.reports.plots.looks import BLUE
from specbench.reports.plots.style import GREY, panels, style

SHOWN = {"overlap": "overlap of p and q", "acceptance_length": "tokens a step"}


@style()
def acceptance_by_sampler(results: pd.DataFrame, bases: Collection[str]) -> Figure:
    """Overlap and acceptance length with their intervals, a line a row; if one row asks for nothing, its own stand as
    dashed lines.

    Args:
        results: with a column ``series``, what each row is called.
        bases: the rows that ask for nothing but a temperature.
    """
    figure, every_axes = panels(2, 2, (1 / 2, 0.6 + 0.24 * len(results)), sharey=True)
    places = np.arange(len(results))[::-1]
    for axes, (name, label) in zip(every_axes, SHOWN.items(), strict=True):
        value, low, high = (results[name + suffix].to_numpy(dtype=float) for suffix in ("", "_low", "_high"))
        axes.errorbar(value, places, xerr=[value - low, high - value], fmt="o", color=BLUE, markersize=4, capsize=2)
        if len(bases) == 1:
            (base,) = value[results["series"].isin(bases).to_numpy()]
            axes.axvline(base, color=GREY, linewidth=0.9, linestyle="--")
        axes.set(xlabel=label)
        axes.set_yticks(places, list(results["series"]))
    return figure
