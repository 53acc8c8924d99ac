"""Figures that compare engines, drafters and sampling parameters. ``results`` has the columns of NamedRun.

The last ones are of engines under test: how far their two ways of decoding are apart.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from specbench.metrics.columns import Column, columns_of
from specbench.metrics.results import CategoryRow
from specbench.reports.cells import Run
from specbench.reports.plots.decode import AXIS_LABELS
from specbench.reports.plots.looks import BLUE, DASHDOT, DASHED, DOTTED, in_order
from specbench.reports.plots.style import (
    GREY,
    draw_points,
    ends,
    left_label,
    literal,
    panels,
    style,
    visible,
    with_legend,
)

LINES = (DASHED, DOTTED, DASHDOT, (0, (1, 3)), (0, (6, 2)))
Bars = Sequence[tuple[str, float, float]]  # a name, what was observed, and its bound
SHOWN: dict[Column, str] = {Run.overlap: "overlap of p and q", Run.acceptance_length: "acceptance length"}


@dataclass(frozen=True)
class DecoderRow:
    """Another decoder at a batch size."""

    batch: int
    name: str
    gamma: int  # 0 if it drafts nothing
    tokens_per_second: float | None  # median over runs
    seconds_prepared: float | None  # the most of any run


Decoder, Category = columns_of(DecoderRow), columns_of(CategoryRow)


@style()
def speed_against_gamma(results: pd.DataFrame, others: pd.DataFrame) -> Figure:
    """Tokens a second by gamma, a panel a batch size, a line an engine; plain decoding stands at gamma 0.

    Args:
        others: of DecoderRow; a decoder that drafts nothing is a level.
    """
    batches, engines = sorted(results[Run.batch_size].unique()), list(dict.fromkeys(results[Run.engine]))
    names = list(dict.fromkeys(others[Decoder.name]))
    figure, every_axes = panels(len(batches), 3, (1 / min(len(batches), 3), 2.5), margin=0.5, sharey=False)
    for axes, batch in zip(every_axes, batches, strict=True):
        here = results[results[Run.batch_size] == batch]
        for engine, look in in_order(engines).items():
            rows = here[here[Run.engine] == engine].sort_values(Run.gamma)
            points = {0: rows[Run.plain_tokens_per_second].median()}
            points |= rows[rows[Run.gamma] > 0].groupby(Run.gamma)[Run.tokens_per_second].median().to_dict()
            axes.plot(list(points), list(points.values()), label=engine, **look.line)
        for place, name in enumerate(names):
            decoder = others[(others[Decoder.name] == name) & (others[Decoder.batch] == batch)]
            decoder = decoder.dropna(subset=Decoder.tokens_per_second)
            for speed in decoder[decoder[Decoder.gamma] == 0][Decoder.tokens_per_second]:
                axes.axhline(speed, color=GREY, linewidth=0.9, linestyle=LINES[place % len(LINES)], label=name)
            drafting = decoder[decoder[Decoder.gamma] > 0].sort_values(Decoder.gamma)
            if len(drafting):
                x, y = (drafting[column].to_numpy(dtype=float) for column in (Decoder.gamma, Decoder.tokens_per_second))
                axes.plot(x, y, "x", color=GREY, linestyle=LINES[place % len(LINES)], markeredgecolor=GREY, label=name)
        axes.set(title=f"batch size {batch}", xlabel=AXIS_LABELS[Run.gamma], ylim=(0, None))
        axes.set_xticks(sorted({0, *here[Run.gamma]}))
    every_axes[0].set_ylabel("tokens a second")
    return with_legend(figure, columns=3)


@style()
def speedup_by_category(speeds: pd.DataFrame) -> Figure:
    """Speedup of each drafter by category of prompt, a panel a temperature.

    Args:
        speeds: columns temperature and series of NamedRun, category, and the speedup with its interval.
    """
    temperatures = sorted(speeds[Run.temperature].unique())
    categories = list(dict.fromkeys(speeds[Category.category]))
    looks = in_order(dict.fromkeys(speeds[Run.series]))
    figure, every_axes = panels(len(temperatures), 2, (1 / 2, 2.4), margin=0.2)
    for axes, temperature in zip(every_axes, temperatures, strict=True):
        here = speeds[speeds[Run.temperature] == temperature]
        for place, (series, look) in enumerate(looks.items()):
            rows = here[here[Run.series] == series]
            x = np.array([categories.index(category) for category in rows[Category.category]], dtype=float)
            x += 0.6 * ((place + 0.5) / len(looks) - 0.5)  # beside each other
            draw_points(axes, x, rows, Category.speedup, literal(series), **look.points)
        axes.axhline(1, color=GREY, linewidth=0.8, linestyle="--")
        axes.set_xticks(range(len(categories)), list(map(visible, categories)), parse_math=False)
        axes.set_title(f"temperature {temperature:g}", parse_math=False)
    left_label(every_axes, "speedup")
    return with_legend(figure)


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
        value, low, high = ends(results, name)
        axes.errorbar(value, places, xerr=[value - low, high - value], fmt="o", color=BLUE, markersize=4, capsize=2)
        if len(bases) == 1:
            (base,) = value[results[Run.series].isin(bases).to_numpy()]
            axes.axvline(base, color=GREY, linewidth=0.9, linestyle="--")
        axes.set(xlabel=label)
        axes.set_yticks(places, list(map(visible, results[Run.series])), parse_math=False)
    return figure


@style()
def bias(by_position: Bars, by_prompt: Bars, confidence: float, title: str) -> Figure:
    """Difference a token in the shares of classes, by position and by prompt: observed, noise included, and bounded."""
    figure, (left, right) = panels(2, 2, (0.5, 3.6), margin=0.4, sharey=False)
    _bars(left, by_position, confidence, "position in the text")
    _bars(right, by_prompt, confidence, "prompt")
    left.set_title(visible(title), parse_math=False)
    return with_legend(figure, columns=2)


@style()
def engines(bars: Bars, confidence: float) -> Figure:
    """Largest difference a token in shares of sets of tokens, by engine and method: observed, and bounded."""
    figure, (axes,) = panels(1, 1, (1.0, 1.5 + 0.25 * len(bars)), margin=0.4)
    _bars(axes, bars, confidence, "")
    axes.set_xlabel("difference a token in shares of tokens")
    return with_legend(figure, columns=2)


def _bars(axes: Axes, bars: Bars, confidence: float, label: str) -> None:
    names, observed, bounds = zip(*bars, strict=True) if bars else ((), (), ())
    places = np.arange(len(names))[::-1]
    axes.barh(places, bounds, color="#d5e6f3", label=f"at most ({confidence:.0%} confidence)")
    axes.plot(observed, places, "o", color=BLUE, markersize=4, label="observed, noise included")
    axes.axvline(0, color=GREY, linewidth=0.6)
    axes.set_yticks(places, list(map(visible, names)), fontsize=6 if len(names) > 20 else 7, parse_math=False)
    axes.set(xlabel="total variation a token, of classes", ylabel=label, xlim=(0, None), ylim=(-1, len(names)))
    axes.grid(axis="x")
