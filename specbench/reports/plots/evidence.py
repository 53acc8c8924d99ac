"""Figures of evidence from a pair's texts: paths of the e-process, and forks of greedy texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from specbench.reports.plots.looks import BLUE, DASHED, SOLID, in_order, looks
from specbench.reports.plots.style import GREY, INK, PALE, legend, panels, style

Rows = pd.DataFrame | Sequence[dict[str, Any]]
LOWEST = -10.0  # log10 of evidence; single bets sink without end


@style()
def eprocess(paths: Rows, false_alarm: float, title: str = "") -> Figure:
    """Evidence against the target token by token: the mixture in front, single bets pale behind it."""
    table = pd.DataFrame(paths)
    figure, (axes,) = panels(1, 1, (0.8, 2.8))
    for name, rows in table.groupby("bet", sort=False):
        if name != "all bets":
            _path(axes, rows, PALE, lw=0.6)
    _path(axes, table[table["bet"] == "all bets"], BLUE, label="all bets, equal stakes")
    _threshold(axes, false_alarm)
    axes.set(xlabel="tokens decoded", ylabel=r"$\log_{10}$ of the evidence")
    axes.set_title(title, parse_math=False)
    legend(figure, columns=2)
    return figure


@style()
def evidence_paths(paths: pd.DataFrame, false_alarm: float) -> Figure:
    """Evidence of several verifiers, a panel a setting, on a scale that is logarithmic beyond 10.

    Args:
        paths: columns setting, verifier, lossless, token, log10_value, of all bets together. Verifiers that say
            lossless are drawn solid, flawed ones dashed.
    """
    settings = list(paths.groupby("setting", sort=False))
    every_look = looks(paths["verifier"])
    figure, every = panels(len(settings), 2, (1 / min(len(settings), 2), 3.0), margin=0.6)
    for axes, (setting, own) in zip(every, settings, strict=True):
        for name, rows in own.groupby("verifier", sort=False):
            look, line = every_look[str(name)], SOLID if rows["lossless"].all() else DASHED
            marks = {"marker": look.marker, "markevery": 0.23, "ms": 3.5}
            _path(axes, rows, look.colour, ls=line, label=str(name), **marks)
        _threshold(axes, false_alarm)
        axes.set_yscale("symlog", linthresh=10)
        axes.set(xlabel="tokens decoded")
        axes.set_title(str(setting), parse_math=False)
    every[0].set_ylabel(r"$\log_{10}$ of the evidence")
    legend(figure, columns=3)
    return figure


@style()
def forks(rows: Rows, title: str = "") -> Figure:
    """The smaller margin of each fork against the noise of its logits; below the line rounding explains it.

    Args:
        rows: columns of greedy_divergence.parquet, forks whose margins are known, and optionally ``series``, which
            tells them apart.
    """
    table = pd.DataFrame(rows)
    series = table["series"] if "series" in table else table["cause"]
    margin = table[["plain_margin", "speculative_margin"]].abs().min(axis=1).to_numpy(dtype=float)
    opposed = (table["plain_margin"] * table["speculative_margin"] <= 0).to_numpy()
    noise = table["logit_noise"].to_numpy(dtype=float)
    positive = np.concatenate([margin[margin > 0], noise[noise > 0]])
    floor = positive.min() / 3 if len(positive) else 1e-9  # where exact ties are drawn on a logarithmic scale
    figure, (axes,) = panels(1, 1, (0.7, 3.0), margin=0.3)
    given = looks(series) if "series" in table else in_order(series)
    for name, look in given.items():
        for chosen, fill, label in ((opposed, look.colour, str(name)), (~opposed, "white", None)):
            own = (series == name).to_numpy() & chosen
            rim = {"markerfacecolor": fill, "markeredgecolor": look.colour, "markeredgewidth": 0.9, "markersize": 4}
            axes.plot(noise[own].clip(floor), margin[own].clip(floor), label=label, **look.points, **rim)
    ends = np.array([noise.min(initial=1), noise.max(initial=0)]).clip(floor) * (0.5, 2)
    axes.plot(ends, 2 * ends, color=GREY, ls=DASHED, lw=0.9, label="margin twice the noise")
    axes.set(xscale="log", yscale="log", xlabel="largest difference of a logit between the two shapes")
    axes.set_ylabel("smaller margin at the fork")
    axes.set_title(title, parse_math=False)
    legend(figure, columns=2)
    return figure


def _path(axes: Axes, rows: pd.DataFrame, colour: str, **look: Any) -> None:
    """A path up to where it becomes infinite, which is marked by an arrow."""
    token, value = rows["token"].to_numpy(), rows["log10_value"].to_numpy(dtype=float).clip(min=LOWEST)
    finite = np.isfinite(value)
    if finite.any():
        axes.plot(token[finite], value[finite], color=colour, **look)
    if not finite.all():
        at = token[~finite][0]
        place = axes.get_xaxis_transform()
        arrow = {"arrowstyle": "->", "color": colour, "lw": 0.9}
        axes.annotate("", xy=(at, 0.99), xytext=(at, 0.8), arrowprops=arrow, xycoords=place, textcoords=place)
        if not finite.any():  # from the first written point on: a line of no length, for the legend
            axes.plot([], [], color=colour, **look)


def _threshold(axes: Axes, false_alarm: float) -> None:
    level = -np.log10(false_alarm)
    axes.axhline(level, color=INK, ls=DASHED, lw=0.9, label=f"rejected beyond (false alarm {false_alarm:g})")
    axes.axhline(0, color=GREY, lw=0.6)
