"""Figures of verifier timings. ``rows`` has the columns of benchmark.tables.LatencyRow; skipped cases are left out."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from specbench.benchmark.tables import LatencyRow
from specbench.metrics.columns import columns_of
from specbench.reports.plots.looks import DASHED, DOTTED, Look, looks
from specbench.reports.plots.style import GREY, INK, draw_points, left_label, panels, style, with_legend
from specbench.rules import RULES, floor_info

Case = columns_of(LatencyRow)


@style()
def time_against_batch(rows: pd.DataFrame) -> Figure:
    """Median time from logits to tokens against the number of requests, a panel a variant of the most batch sizes.

    Bars are 95% intervals, mostly hidden by the points; hollow points were timed without a graph.
    """
    timed = rows[rows[Case.skipped].isna()]
    sizes = timed.groupby(Case.variant, sort=False)[Case.batch_size].nunique()
    variants = [str(name) for name in sizes.index if sizes[name] == sizes.max()]
    figure, every_axes = panels(len(variants), 2, (1 / min(len(variants), 2), 2.5), margin=0.6)
    for axes, variant in zip(every_axes, variants, strict=True):
        chosen = timed[timed[Case.variant] == variant]
        _floors(axes, chosen)
        for name, look in looks(timed[Case.verifier]).items():
            _line(axes, chosen[chosen[Case.verifier] == name].sort_values(Case.batch_size), name, look)
        axes.set(xscale="log", yscale="log")
        axes.set_title(variant, parse_math=False)
        ticks = np.unique(chosen[Case.batch_size])
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter("{x:g}")
    figure.supxlabel("requests", fontsize=8)
    left_label(every_axes, "time of one verification (µs)")
    return with_legend(figure, columns=3)


def _line(axes: Axes, line: pd.DataFrame, name: str, look: Look) -> None:
    if line.empty:
        return
    x, y = line[Case.batch_size].to_numpy(), line[Case.median_us].to_numpy()
    draw_points(axes, x, line, Case.median_us, name, **look.line)
    hollow = ~line[Case.graph].astype(bool).to_numpy()
    if hollow.any() and line[Case.device].iloc[0] != "cpu":
        axes.scatter(x[hollow], y[hollow], s=22, facecolor="white", edgecolor=look.colour, marker=look.marker, zorder=3)


def _floors(axes: Axes, chosen: pd.DataFrame) -> None:
    for number, info in enumerate(RULES.values()):
        of_rule = chosen[chosen[Case.rule].map(floor_info) == info]
        if of_rule.empty:
            continue
        floor, label = of_rule.groupby(Case.batch_size)[Case.floor_us].median(), f"byte floor, {info.title}"
        # The third rule's dash has one dot, the fourth's two, and so on.
        dashes = (DASHED, DOTTED)[number] if number < 2 else (0, (6.0, 2.0, *((1.0, 2.0) * (number - 1))))
        axes.plot(floor.index, floor.to_numpy(), color=INK, linestyle=dashes, linewidth=0.9, label=label)


@style()
def ratio_to_floor(rows: pd.DataFrame) -> Figure:
    """Time over the byte floor with its 95% interval, a line a case, a point a verifier; 1 is the speed of memory."""
    timed = rows[rows[Case.skipped].isna()]
    cases = list(dict.fromkeys(zip(timed[Case.variant], timed[Case.batch_size], strict=True)))
    figure, (axes,) = panels(1, 1, (1.0, 0.9 + 0.17 * len(cases)))
    places = {case: place for place, case in enumerate(cases)}
    for name, look in looks(timed[Case.verifier]).items():
        line = timed[timed[Case.verifier] == name]
        y = [places[case] for case in zip(line[Case.variant], line[Case.batch_size], strict=True)]
        axes.plot(line[Case.ratio], y, label=name, **look.points)
        axes.hlines(y, line[Case.ratio_low], line[Case.ratio_high], color=look.colour, linewidth=1)
    axes.axvline(1, color=GREY, linestyle=DASHED, linewidth=0.9, zorder=1.5)
    axes.set(xscale="log", xlabel="time / byte floor", ylim=(len(cases) - 0.5, -0.5))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_yticks(range(len(cases)), [f"{variant}, {batch}" for variant, batch in cases], parse_math=False)
    axes.grid(visible=True, axis="x")
    return with_legend(figure)
