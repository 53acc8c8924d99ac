"""Figures that compare drafters by category of prompt."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from specbench.reports.plots.looks import in_order
from specbench.reports.plots.style import GREY, left_label, legend, panels, style


@style()
def speedup_by_category(speeds: pd.DataFrame) -> Figure:
    """Speedup of each drafter by category of prompt, a panel a temperature.

    Args:
        speeds: columns temperature, category, drafter, speedup, speedup_low, speedup_high.
    """
    temperatures = sorted(speeds["temperature"].unique())
    categories = list(dict.fromkeys(speeds["category"]))
    looks = in_order(dict.fromkeys(speeds["drafter"]))
    figure, every_axes = panels(len(temperatures), 2, (1 / 2, 2.4), margin=0.2)
    for axes, temperature in zip(every_axes, temperatures, strict=True):
        here = speeds[speeds["temperature"] == temperature]
        for place, (drafter, look) in enumerate(looks.items()):
            rows = here[here["drafter"] == drafter]
            x = np.array([categories.index(each) for each in rows["category"]], dtype=float)
            x += 0.6 * ((place + 0.5) / len(looks) - 0.5)  # beside each other
            middle, low, high = (rows[f"speedup{end}"].to_numpy(dtype=float) for end in ("", "_low", "_high"))
            axes.vlines(x, low, high, color=look.colour, linewidth=1)
            axes.plot(x, middle, label=drafter, **look.points)
        axes.axhline(1, color=GREY, linewidth=0.8, linestyle="--")
        axes.set_xticks(range(len(categories)), categories)
        axes.set_title(f"temperature {temperature:g}", parse_math=False)
    left_label(every_axes, "speedup")
    legend(figure)
    return figure
