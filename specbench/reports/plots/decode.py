"""Figures of decoding runs. ``results`` has the columns of NamedRun.

Rows without a column ``series`` are told apart by their verifiers. Series are drawn side by side,
since verifiers of one rule have the same acceptance and would hide each other.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import fill

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from specbench.metrics import theory
from specbench.metrics.columns import Column
from specbench.metrics.intervals import Estimate
from specbench.metrics.intervals import columns as estimate_columns
from specbench.reports.cells import Run
from specbench.reports.plots.looks import BLUE, DASHED, DOTTED, GREEN, ORANGE, SKY, Look, in_order, looks
from specbench.reports.plots.style import (
    GREY,
    INK,
    LEGEND_ROW,
    broken,
    draw_points,
    left_label,
    literal,
    panels,
    style,
    with_legend,
)

PHASES: dict[Column, tuple[str, str]] = {
    Run.seconds_draft: ("draft", SKY),
    Run.seconds_target: ("target", BLUE),
    Run.seconds_verify: ("verify", ORANGE),
    Run.seconds_commit: ("commit", GREEN),
    Run.seconds_rest: ("rest", "#bdbdbd"),
}
AXIS_LABELS: dict[Column, str] = {
    Run.gamma: r"$\gamma$, tokens drafted per step",
    Run.temperature: "sampling temperature",
}
SYMBOLS: dict[Column, str] = {Run.gamma: r"$\gamma$", Run.temperature: "T"}
TITLE_SHARE = 0.8  # of a panel's width, that its title may take
Rates = Sequence[Estimate | None]


@style()
def acceptance_histogram(histogram: list[int], title: str) -> Figure:
    """How many verification steps accepted 0, 1, ..., gamma drafted tokens (metrics.acceptance_fields)."""
    figure, (axes,) = panels(1, 1, (1 / 2, 2.2))
    bars = axes.bar(range(len(histogram)), histogram, width=0.75, color=BLUE)
    shares = np.array(histogram) / max(sum(histogram), 1)
    axes.bar_label(bars, [f"{share:.0%}" for share in shares], fontsize=7, color=GREY, padding=1)
    axes.set(xlabel="drafted tokens accepted", ylabel="verification steps")
    axes.margins(y=0.1)
    axes.set_title(_wrapped(title), parse_math=False)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    return figure


@style()
def position_rates(joint: Rates, conditional: Rates, title: str = "") -> Figure | None:
    """Acceptance by position in the block (metrics.position_estimates), with its 95% interval; None leaves a gap.

    Returns None if nothing was drafted, so that no position has a rate.
    """
    if not any(joint):
        return None
    figure, (axes,) = panels(1, 1, (1 / 2, 2.4))
    both = {"where all before it were accepted": conditional, "of all drafted": joint}
    for side, (name, look) in zip((-0.5, 0.5), in_order(both).items(), strict=True):
        rates = pd.DataFrame([estimate_columns("rate", estimate) for estimate in both[name]])
        places = np.arange(1, len(rates) + 1) + 0.028 * len(rates) * side  # the two are equal at position 1
        draw_points(axes, places, rates, "rate", name, **look.line)
    axes.set(xlabel="position in the block", ylabel="share accepted", ylim=(0, 1.04))
    axes.set_title(_wrapped(title), parse_math=False)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    return with_legend(figure, columns=1)


@style()
def speedup_against_gamma(results: pd.DataFrame, marked: int | None = None, title: str = "") -> Figure:
    """Speedup over plain decoding with its 95% interval, for readers who know no word of the field.

    Args:
        marked: the place of the row that an arrow points to.
        title: a sentence that says what is seen.
    """
    figure, axes = _speedup(results, Run.gamma)
    if len(_series(results, Run.gamma)) > 1:  # one needs no name, and the line has its own beside it
        with_legend(figure)
    if marked is not None:
        best = results.iloc[marked]
        series = next(candidate for candidate in _series(results, Run.gamma) if best.name in candidate.rows.index)
        x, color = best[Run.gamma] + _shift(results, Run.gamma) * series.place, series.look.colour
        top = best[[Run.speedup, Run.speedup_high]].astype(float).max()  # without an interval the point itself
        arrow = {"arrowstyle": "->", "color": color, "shrinkA": 0, "shrinkB": 2}  # no series has it as its marker
        text = rf"fastest: {SYMBOLS['gamma']} = {best['gamma']:g}: {best['speedup']:.2f}$\times$"
        axes.annotate(text, (x, top), (0, 14), textcoords="offset points", ha="center", color=color, arrowprops=arrow)
    _scale(axes, results, 0.12 if marked is None else 0.2)
    axes.set_title(fill(title, 60), parse_math=False)
    axes.text(1, 1, "without guessing", transform=axes.get_yaxis_transform(), ha="right", va="bottom", color=GREY)
    axes.set(xlabel=r"tokens guessed ahead in each step ($\gamma$)", ylabel="times as fast as without guessing")
    return figure


@style()
def speedup_against_temperature(results: pd.DataFrame) -> Figure:
    """Speedup over plain decoding with its 95% interval."""
    figure, axes = _speedup(results, Run.temperature)
    axes.lines[-1].set_label("plain decoding")
    with_legend(figure)
    _scale(axes, results, 0.12)
    axes.set_ylabel(r"speedup over plain decoding ($\times$)")
    return figure


def _speedup(results: pd.DataFrame, axis: Column) -> tuple[Figure, Axes]:
    figure, (axes,) = panels(1, 1, (0.8, 2.9))
    _lines(axes, results, axis, Run.speedup)
    axes.axhline(1, color=GREY, linestyle=DASHED, linewidth=0.9, zorder=1.5)
    return figure, axes


def _scale(axes: Axes, results: pd.DataFrame, margin: float) -> None:
    """Fits the y axis to speedups and their intervals; the end of an interval that says nothing is cut off."""
    axes.margins(y=margin)
    (low, high), highest = axes.get_ylim(), 3 * max(1.0, results[Run.speedup].max())
    if high > highest:
        axes.set_ylim(max(low, 0), highest)


@style()
def acceptance_length_against_gamma(results: pd.DataFrame) -> Figure:
    """Acceptance length, beside theory.expected_tokens at the measured overlap and the ceiling gamma + 1."""
    figure, (axes,) = panels(1, 1, (0.8, 2.9))
    _lines(axes, results, Run.gamma, Run.acceptance_length)
    predictions, shared = {}, {}  # dicts, since series of one overlap share a prediction
    trees = results[Run.drafted_per_step].astype(float) > results[Run.gamma]  # the prediction is of chains
    for series in _series(results[results[Run.overlap].notna() & ~trees], Run.gamma):
        overlaps = series.rows[Run.overlap].astype(float).clip(upper=1)  # a mean of overlaps may round beyond 1
        curve = tuple(zip(series.rows[Run.gamma], overlaps, strict=True))
        predictions[curve] = [theory.expected_tokens(overlap, gamma) for gamma, overlap in curve]
        shared.setdefault(curve, []).append(series)
    label = "independent acceptance at the overlap"
    for curve, tokens in predictions.items():
        (line,) = axes.plot([gamma for gamma, _ in curve], tokens, color=INK, label=label)
        if len(predictions) > 1:
            names = " and ".join(series.name for series in shared[curve])
            line.set(**shared[curve][0].look.curve, label=f"{label} of {names}")
        line.set(linestyle=DASHED, linewidth=0.9, markevery=1)
    gammas = np.unique(results[Run.gamma])
    axes.plot(gammas, gammas + 1, color=GREY, linewidth=0.9, linestyle=DOTTED, label=r"ceiling $\gamma + 1$")
    # Without an interval, as of a single prompt, the length itself.
    measured = results[[Run.acceptance_length, Run.acceptance_length_high]].astype(float).max(axis=None)
    highest = max(measured, *map(max, predictions.values())) if predictions else measured
    axes.set(ylabel="acceptance length", ylim=(1, 1 + 1.3 * max(highest - 1, 0.5)))
    return with_legend(figure, columns=2)


@style()
def acceptance_against_temperature(results: pd.DataFrame) -> Figure:
    """Acceptance rate and overlap, each with its 95% interval, in two panels of one scale."""
    figure, (left, right) = panels(2, 2, (1 / 2, 2.5))
    for axes, value, title in (
        (left, Run.acceptance_rate, "acceptance rate: accepted / drafted"),
        (right, Run.overlap, r"overlap: mean of $\Sigma$ min(p, q)"),
    ):
        _lines(axes, results, Run.temperature, value)
        axes.set_title(title)
        axes.yaxis.set_major_formatter(PercentFormatter(1))
    return with_legend(figure)


@style()
def time_split(results: pd.DataFrame, axis: Column = Run.gamma) -> Figure:
    """Milliseconds an emitted token by phase, a panel a series; plain decoding as it was timed beside each run."""
    every = _series(results, axis)
    figure, every_axes = panels(len(every), 3, (1 / min(len(every), 3), 2.3), margin=0.4)
    for axes, series in zip(every_axes, every, strict=True):
        places, bottom = np.arange(len(series.rows)), np.zeros(len(series.rows))
        for seconds, (phase, colour) in PHASES.items():
            height = 1000 * series.rows[seconds].fillna(0.0).to_numpy() / series.rows[Run.tokens].to_numpy()
            axes.bar(places, height, bottom=bottom, width=0.7, color=colour, label=phase)
            bottom += height
        plain = 1000 / series.rows[Run.plain_tokens_per_second].to_numpy()
        axes.hlines(plain, places - 0.5, places + 0.5, color=INK, linewidth=1.1, label="plain decoding")
        axes.set_xticks(places, [f"{value:g}" for value in series.rows[axis]])
        axes.set_xlabel(AXIS_LABELS[axis])
    every_axes[0].set_ylabel("ms per emitted token")
    titles = [axes.set_title(series.name) for axes, series in zip(every_axes, every, strict=True)]
    columns = len({place.colspan.start for axes in every_axes if (place := axes.get_subplotspec()) is not None})
    lines = max(broken(title, TITLE_SHARE * figure.get_figwidth() / columns) for title in titles)
    figure.set_figheight(figure.get_figheight() + (lines - 1) * LEGEND_ROW * math.ceil(len(every) / columns))
    return with_legend(figure, columns=5)


@style()
def acceptance_histograms(results: pd.DataFrame, axis: Column = Run.gamma) -> Figure:
    """Share of the verification steps by drafted tokens accepted, a panel a value of the axis, a bar a series."""
    every, values = _series(results, axis), np.unique(results[axis])
    columns = 4 if len(values) > 6 else 3
    figure, every_axes = panels(len(values), columns, (1 / columns, 1.5), margin=0.6)
    width = 0.8 / len(every)
    for axes, value in zip(every_axes, values, strict=True):
        for series in every:
            for histogram in series.rows.loc[series.rows[axis] == value, Run.acceptance_histogram]:
                places = np.arange(len(histogram)) + width * series.place
                shares = np.asarray(histogram) / max(sum(histogram), 1)
                axes.bar(places, shares, width, label=series.name, **series.look.bars)
        axes.set_title(f"{SYMBOLS[axis]} = {value:g}")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        axes.yaxis.set_major_formatter(PercentFormatter(1))
    figure.supxlabel("drafted tokens accepted", fontsize=8)
    left_label(every_axes, "verification steps")
    return with_legend(figure)


@dataclass(frozen=True)
class _Series:
    name: str
    rows: pd.DataFrame
    place: float  # ..., -1, 0, 1, ...: its place beside the others
    look: Look


def _series(results: pd.DataFrame, axis: Column) -> list[_Series]:
    column = results[Run.series] if Run.series in results else results[Run.verifier]
    every = looks(column)
    return [
        _Series(literal(name), results[column == name].sort_values(axis), i - (len(every) - 1) / 2, look)
        for i, (name, look) in enumerate(every.items())
    ]


def _lines(axes: Axes, results: pd.DataFrame, axis: Column, value: Column) -> None:
    for series in _series(results, axis):
        x = series.rows[axis] + _shift(results, axis) * series.place
        draw_points(axes, x, series.rows, value, series.name, **series.look.line)
    ticks = np.unique(results[axis])
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_xlabel(AXIS_LABELS[axis])


def _shift(results: pd.DataFrame, axis: Column) -> float:
    """How far apart series are drawn, in units of the x axis, so that equal ones stay visible."""
    return 0.014 * (float(np.ptp(results[axis])) or 1.0)


def _wrapped(title: str) -> str:
    """A label of a job may be a whole command line, which would leave no room for what is drawn."""
    return fill(re.sub(r",(?=\S)", ", ", title), 36, max_lines=3, placeholder=" ...")
