"""Figures of drawn tokens beside the target's probabilities, and of what the exactness laboratory's tests see."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from specbench.metrics import theory
from specbench.metrics.columns import columns_of
from specbench.metrics.exactness_rows import CellRow
from specbench.metrics.results import EmpiricalRow
from specbench.reports.plots.looks import BLUE, VERMILLION
from specbench.reports.plots.style import BAND, INK, PALE, panels, style, visible, width, with_legend

Rows = pd.DataFrame | Sequence[dict[str, Any]]
# Light where few draws suffice would say "weak"; the eye should go to the tests that catch, so few draws are dark.
HEAT = LinearSegmentedColormap.from_list("heat", ["#08306b", "#2171b5", "#6baed6", "#deebf7"])
MOST_CELLS = 27


@dataclass(frozen=True)
class SeenRow:
    """What a test sees of a verifier."""

    verifier: str
    column: str  # the fixture and the test
    needed: float | None  # draws; None if the test does not see the bug


Cell, Draw, Seen = columns_of(CellRow), columns_of(EmpiricalRow), columns_of(SeenRow)


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


@style()
def empirical_joint(cells: Rows, verifier: str) -> Figure:
    """Share of each whole step, divided by the target's probability of it, with the band of sampling noise.

    A panel a fixture, likeliest steps first. Shares of short steps are completed with the target, which only lowers
    their noise: 95% of an exact rule's points, or more, lie in the band. Only steps that are expected 10 times or more
    are drawn; of slow code that may be none.
    """
    table = pd.DataFrame(cells)
    fixtures = list(table.groupby(Cell.fixture, sort=False))
    figure, every_axes = panels(len(fixtures), 4, (1 / 4, 1.5), margin=0.5, sharey=False)
    for axes, (name, fixture) in zip(every_axes, fixtures, strict=True):
        draws = int(fixture[Cell.draws].iloc[0])
        rows = fixture[fixture[Cell.prob] * draws >= 10].nlargest(MOST_CELLS, Cell.prob)
        prob, places = rows[Cell.prob].to_numpy(), np.arange(len(rows))
        low, high = (bound / prob for bound in theory.binomial_band(prob.clip(0, 1), max(draws, 1)))
        ratio = rows[Cell.share].to_numpy() / prob
        axes.fill_between(places, low, high, step="mid", color=BAND, label="95% of samples of an exact rule")
        axes.axhline(1, color=INK, lw=0.6)
        inside = (ratio >= low) & (ratio <= high)
        for label, chosen, colour, marker in (
            ("share drawn / probability, inside", inside, BLUE, "o"),
            ("outside", ~inside, VERMILLION, "D"),
        ):
            axes.plot(places[chosen], ratio[chosen], marker, ms=2.4, mew=0, color=colour, label=label)
        reach = 1.3 * max(np.abs(np.concatenate([low, high, ratio]) - 1).max(initial=0), 1e-6)
        axes.set(xticks=[], ylim=(1 - reach, 1 + reach))
        axes.set_title(str(name) if len(rows) else f"{name}: too few draws", fontsize=7.5)
    figure.supxlabel(f"{verifier}: sequences of a whole step, likeliest first", fontsize=8)
    return with_legend(figure, columns=3)


@style()
def sensitivity(rows: Rows) -> Figure:
    """Flawed verifiers by tests: draws that a test needs, dark where few suffice.

    Args:
        rows: SeenRow of each verifier and test.
    """
    table = pd.DataFrame(rows)
    heat = table.pivot_table(
        index=Seen.verifier, columns=Seen.column, values=Seen.needed, aggfunc="min", dropna=False, sort=False
    )
    heat = heat[[name for name in table[Seen.column].drop_duplicates() if name in heat]]
    grid = np.log10(heat.to_numpy(dtype=float).clip(min=1))  # enumeration draws nothing
    figure = Figure(figsize=(width(1.2), 1.7 + 0.155 * len(heat)), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(grid, aspect="auto", cmap=HEAT, vmin=2, vmax=8, interpolation="nearest")
    axes.set_yticks(range(len(heat)), list(heat.index), fontsize=6.5, parse_math=False)
    a_column = 72 * 0.75 * figure.get_figwidth() / len(heat.columns)  # points; bugs take a quarter of the width
    axes.set_xticks(range(len(heat.columns)), list(heat.columns), rotation=90, fontsize=min(6.5, a_column))
    axes.grid(visible=False)
    axes.tick_params(length=0)
    bar = figure.colorbar(image, ax=axes, location="bottom", shrink=0.4, aspect=40, pad=0.01)
    bar.set_label(r"$\log_{10}$ of the steps needed to catch it with power 0.99; white: not seen", fontsize=7)
    return figure
