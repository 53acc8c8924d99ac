"""Figures of an engine under test: how far its two ways of decoding are apart."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from specbench.reports.plots.looks import BLUE
from specbench.reports.plots.style import GREY, panels, style, with_legend

Bars = Sequence[tuple[str, float, float]]  # a name, what was observed, and its bound


@style()
def bias(by_position: Bars, by_prompt: Bars, confidence: float, title: str = "") -> Figure:
    """Difference a token in the shares of classes, by position and by prompt: observed, noise included, and bounded."""
    figure, (left, right) = panels(2, 2, (0.5, 3.6), margin=0.4, sharey=False)
    _bars(left, by_position, confidence, "position in the text")
    _bars(right, by_prompt, confidence, "prompt")
    left.set_title(title, parse_math=False)
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
    axes.set_yticks(places, names, fontsize=6 if len(names) > 20 else 7)
    axes.set(xlabel="total variation a token, of classes", ylabel=label, xlim=(0, None))
    axes.grid(axis="x")
