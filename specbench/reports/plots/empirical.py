"""Figure of the empirical-against-target check: shares of drawn tokens beside the target's probabilities."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from specbench.metrics import theory
from specbench.metrics.columns import columns_of
from specbench.metrics.results import EmpiricalRow
from specbench.reports.plots.looks import BLUE, VERMILLION
from specbench.reports.plots.style import BAND, PALE, panels, style, visible, with_legend

Draw = columns_of(EmpiricalRow)


@style()
def empirical_against_target(empirical: pd.DataFrame, top: int = 20) -> Figure:
    """Shares of the tokens drawn in one run (rows of results.EmpiricalRow) against the target's probabilities.

    A panel a prefix. The ``top`` likeliest tokens have bars of their own and all others share one, so that a token
    shows that was drawn although the target forbids it.
    """
    prefixes = list(empirical.groupby(Draw.prefix, sort=False))
    bars = min(top, max(len(tokens) for _, tokens in prefixes)) + 1
    figure, every_axes = panels(len(prefixes), 2, (1 / 2, 0.5 + 0.14 * bars), margin=0.6, sharey=False)
    for axes, (prefix, tokens) in zip(every_axes, prefixes, strict=True):
        _one_prefix(axes, tokens.sort_values(Draw.prob, ascending=False, kind="stable").head(top))
        axes.set(ylim=(bars - 0.4, -0.6), xlim=(0, None))
        axes.set_title(f"prefix {_shortened(str(prefix), 24, keep_end=True)}", parse_math=False)
    figure.supxlabel("probability of the next token", fontsize=8)
    return with_legend(figure, columns=2)


def _one_prefix(axes: Axes, tokens: pd.DataFrame) -> None:
    draws = int(tokens[Draw.draws].iloc[0])
    probs = np.append(tokens[Draw.prob], 1 - tokens[Draw.prob].sum())
    probs = probs.clip(0, 1)  # sums of probabilities round beyond 0 and 1
    shares = np.append(tokens[Draw.count], draws - tokens[Draw.count].sum()) / draws
    labels = [*(_shortened(token, 14) for token in tokens[Draw.token]), "all others"]
    low, high = theory.binomial_band(probs, draws)
    places, inside = np.arange(len(labels)), (low <= shares) & (shares <= high)
    axes.barh(places, probs, height=0.8, color=PALE, label="target's probability")
    axes.barh(places, high - low, left=low, height=0.36, color=BAND, label=f"95% of samples of {draws}")
    for name, chosen, look in (("inside the band", inside, "o"), ("outside it", ~inside, "D")):
        (points,) = axes.plot(shares[chosen], places[chosen], look, ms=4, label=f"share drawn, {name}")
        # Whole at 0, and the layout does not count them.
        points.set(color=VERMILLION if look == "D" else BLUE, clip_on=False, in_layout=False)
    axes.set_yticks(places, labels, fontsize=6.5, parse_math=False)
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=True, axis="x")
    axes.grid(visible=False, axis="y")


def _shortened(text: str, length: int, keep_end: bool = False) -> str:
    """A quoted text in which nothing is invisible; characters that the figures' font may lack are escaped."""
    if len(text) > length:
        text = f"…{text[-length:]}" if keep_end else f"{text[:length]}…"
    return visible(repr(text))
