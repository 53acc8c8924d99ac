"""Figures of cost models and predicted speedups."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from specbench.metrics.columns import columns_of
from specbench.replay.cost.forecast import PredictedRow
from specbench.replay.cost.model import CostModel, CostRow
from specbench.reports.cells import Run
from specbench.reports.plots.decode import AXIS_LABELS
from specbench.reports.plots.looks import BLUE, DASHED, looks
from specbench.reports.plots.style import GREY, INK, draw_band, draw_points, panels, style, with_legend

Cost, Point = columns_of(CostRow), columns_of(PredictedRow)


@style()
def step_times(rows: pd.DataFrame, model: CostModel) -> Figure:
    """Target and draft passes against tokens a call: points measured, lines fitted (at the mean context)."""
    figure, (left, right) = panels(2, 2, (1 / 2, 2.6), margin=0.3, sharey=False)
    drafting = rows[rows[Cost.gamma] > 0]
    a_token = drafting[Cost.draft] / drafting[Cost.gamma]
    for axes, tokens, seconds, roofline, title in (
        (left, rows[Cost.batch] * (rows[Cost.gamma] + 1), rows[Cost.target], model.target, "target"),
        (right, drafting[Cost.batch], a_token, model.draft, "draft, one token a request"),
    ):
        axes.set(title=title, xlabel="tokens a call", ylim=(0, None))
        if roofline is None or not len(tokens):
            continue
        axes.plot(tokens, 1e3 * seconds, ".", color=BLUE, ms=4, label="measured", alpha=0.7)
        line = np.unique(np.concatenate([np.geomspace(1, max(tokens.max(), 2), 60), [roofline.knee or 1.0]]))
        per_token = float(rows[Cost.context].mean())
        requests = line / (tokens / (rows[Cost.batch] if axes is left else drafting[Cost.batch])).mean()
        axes.plot(line, 1e3 * roofline.seconds(line, requests * per_token), color=INK, label="roofline")
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:g}")
        axes.set_ylim(0, 1.08e3 * float(seconds.max()))
    left.set_ylabel("ms")
    return with_legend(figure)


@style()
def predicted_speedups(predicted: pd.DataFrame, measured: pd.DataFrame) -> Figure:
    """Predicted speedup with its 95% band, measured runs over it with their intervals; a panel a batch size."""
    groups, every = list(predicted.groupby(Point.batch)), looks(predicted[Run.verifier])
    figure, every_axes = panels(len(groups), 2, (1 / min(len(groups), 2), 2.9), margin=0.4)
    for axes, (batch, lines) in zip(every_axes, groups, strict=True):
        for name, line in lines.groupby(Run.verifier, sort=False):
            curve, look = line.sort_values(Point.gamma), every[str(name)]
            draw_band(axes, curve[Point.gamma], curve, Point.speedup, f"{name}, predicted", look)
            points = measured[(measured[Point.batch] == batch) & (measured[Run.verifier] == name)]
            draw_points(axes, points[Point.gamma], points, Point.speedup, f"{name}, measured", **look.points)
        axes.axhline(1, color=GREY, linestyle=DASHED, linewidth=0.9, zorder=1.5, label="plain decoding")
        axes.set_title(f"batch {batch}")
        axes.set_xlabel(AXIS_LABELS[Run.gamma])
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    every_axes[0].set_ylabel(r"speedup over plain decoding ($\times$)")
    return with_legend(figure, columns=3)
