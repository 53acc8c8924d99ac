"""Figures of cost models and predicted speedups."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from specbench.replay.cost.model import CostModel
from specbench.reports.plots.decode import AXIS_LABELS
from specbench.reports.plots.looks import BLUE, DASHED, in_order, looks
from specbench.reports.plots.style import GREY, INK, draw_band, draw_points, panels, style, with_legend


@style()
def step_times(rows: pd.DataFrame, model: CostModel) -> Figure:
    """Target and draft passes against tokens a call: points measured, lines fitted (at the mean context)."""
    figure, (left, right) = panels(2, 2, (1 / 2, 2.6), margin=0.3, sharey=False)
    drafting = rows[rows["gamma"] > 0]
    for axes, tokens, seconds, roofline, title in (
        (left, rows["batch"] * (rows["gamma"] + 1), rows["target"], model.target, "target"),
        (right, drafting["batch"], drafting["draft"] / drafting["gamma"], model.draft, "draft, one token a request"),
    ):
        axes.set(title=title, xlabel="tokens a call", ylim=(0, None))
        if roofline is None or not len(tokens):
            continue
        axes.plot(tokens, 1e3 * seconds, ".", color=BLUE, ms=4, label="measured", alpha=0.7)
        line = np.unique(np.concatenate([np.geomspace(1, max(tokens.max(), 2), 60), [roofline.knee or 1.0]]))
        per_token = float((rows["context"]).mean())
        requests = line / (tokens / (rows["batch"] if axes is left else drafting["batch"])).mean()
        axes.plot(line, 1e3 * roofline.seconds(line, requests * per_token), color=INK, label="roofline")
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:g}")
        axes.set_ylim(0, 1.08e3 * float(seconds.max()))
    left.set_ylabel("ms")
    return with_legend(figure)


@style()
def predicted_speedups(predicted: pd.DataFrame, measured: pd.DataFrame) -> Figure:
    """Predicted speedup with its 95% band, measured runs over it with their intervals; a panel a batch size."""
    groups, every = list(predicted.groupby("batch")), looks(predicted["verifier"])
    figure, every_axes = panels(len(groups), 2, (1 / min(len(groups), 2), 2.9), margin=0.4)
    for axes, (batch, lines) in zip(every_axes, groups, strict=True):
        for name, line in lines.groupby("verifier", sort=False):
            curve, look = line.sort_values("gamma"), every[str(name)]
            draw_band(axes, curve["gamma"], curve, "speedup", f"{name}, predicted", look)
            points = measured[(measured["batch"] == batch) & (measured["verifier"] == name)]
            draw_points(axes, points["gamma"], points, "speedup", f"{name}, measured", **look.points)
        axes.axhline(1, color=GREY, linestyle=DASHED, linewidth=0.9, zorder=1.5, label="plain decoding")
        axes.set_title(f"batch {batch}")
        axes.set_xlabel(AXIS_LABELS["gamma"])
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    every_axes[0].set_ylabel(r"speedup over plain decoding ($\times$)")
    return with_legend(figure, columns=3)


@style()
def speedup_by_batch(steady: pd.DataFrame) -> Figure:
    """Speedup of the best gamma, and of a few, in a full batch, against the batch size; dashed where extrapolated."""
    figure, (axes,) = panels(1, 1, (0.8, 2.8))
    for gamma, look in in_order(sorted(steady["gamma"].unique())).items():
        line = steady[steady["gamma"] == gamma]
        measured = line[line["measured"]]
        beyond = line[line["batch"] >= measured["batch"].max()]
        axes.plot(measured["batch"], measured["speedup"], label=rf"$\gamma$ = {gamma}", **look.line)
        axes.plot(beyond["batch"], beyond["speedup"], color=look.colour, linestyle=DASHED)
    axes.plot([], [], color=GREY, linestyle=DASHED, label="extrapolated")
    axes.axhline(1, color=GREY, linewidth=0.9)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set(xlabel="batch size", ylabel=r"predicted speedup ($\times$)", ylim=(0, None))
    return with_legend(figure)
