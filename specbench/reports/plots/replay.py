"""Figures of replayed traces. Tables have the columns of replay/summary.py."""

from collections.abc import Mapping

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from specbench.metrics.columns import columns_of
from specbench.replay.summary import PolicyRow, ReplayRow
from specbench.replay.survival import ARGMAX
from specbench.reports.cells import Run
from specbench.reports.plots.decode import AXIS_LABELS
from specbench.reports.plots.looks import DASHED, Look, in_order, looks
from specbench.reports.plots.style import INK, draw_band, draw_points, panels, style, with_legend
from specbench.rules import RULES

Replayed, Policy = columns_of(ReplayRow), columns_of(PolicyRow)


def _title(rule: str) -> str:
    """The title of a rule, or its name if it is not registered."""
    titles = {info.name: info.title for info in (*RULES.values(), ARGMAX)}
    return titles.get(rule, f"{rule} rule")


@style()
def replayed_lengths(rows: pd.DataFrame) -> Figure:
    """Tokens a step against gamma, a line a rule, with bands of 95% over prompts."""
    figure, (axes,) = panels(1, 1, (0.8, 2.9))
    draw_lengths(axes, rows, looks(rows[Replayed.rule]))
    axes.set(ylabel="tokens emitted per step", ylim=(0.95, None))
    axes.set_xlabel(AXIS_LABELS[Run.gamma])
    return with_legend(figure)


def draw_lengths(axes: Axes, rows: pd.DataFrame, looks_of: Mapping[str, Look]) -> None:
    """Lines and bands of replayed lengths."""
    for rule in dict.fromkeys(rows[Replayed.rule]):
        line = rows[rows[Replayed.rule] == rule].sort_values(Replayed.gamma)
        draw_band(
            axes, line[Replayed.gamma], line, Replayed.acceptance_length, f"{_title(rule)}, replayed", looks_of[rule]
        )
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


@style()
def policy_frontier(rows: pd.DataFrame) -> Figure:
    """Tokens a step against tokens drafted a step, a panel a rule, a line a kind of policy."""
    rules = list(rows.groupby(Policy.rule, sort=False))
    looks_of = {**in_order(sorted({*rows[Policy.policy]} - {"fixed"})), "fixed": Look(INK, "o", DASHED)}
    figure, every_axes = panels(len(rules), 2, (1 / 2, 2.6), margin=0.4)
    for axes, (rule, lines) in zip(every_axes, rules, strict=True):
        for kind, points in lines.groupby(Policy.policy, sort=False):
            line, look = points.sort_values(Policy.drafted_per_step), looks_of[kind]
            label = r"fixed $\gamma$" if kind == "fixed" else f"stop by {kind}"
            axes.plot(line[Policy.drafted_per_step], line[Policy.acceptance_length], label=label, ms=4, **look.line)
        axes.set_title(_title(str(rule)))
        axes.set_xlabel("tokens drafted per step")
    every_axes[0].set_ylabel("tokens emitted per step")
    return with_legend(figure)


@style()
def against_decoding(replayed: pd.DataFrame, decoded: pd.DataFrame) -> Figure:
    """Replay's lines and bands with decoded runs over them as points with 95% intervals; a panel a temperature."""
    groups = list(replayed.groupby(Run.temperature))
    figure, every_axes = panels(len(groups), 2, (1 / 2, 2.9), margin=0.4)
    looks_of = looks([*replayed[Replayed.rule], *decoded[Replayed.rule]])
    for axes, (temperature, lines) in zip(every_axes, groups, strict=True):
        draw_lengths(axes, lines, looks_of)
        here = decoded[decoded[Run.temperature] == temperature]
        for rule, points in here.groupby(Replayed.rule, sort=False):
            label, look = f"{_title(str(rule))}, decoded", looks_of[str(rule)].points
            draw_points(axes, points[Replayed.gamma], points, Replayed.acceptance_length, label, ms=4, **look)
        axes.set_title(f"T = {temperature:g}")
        axes.set_xlabel(AXIS_LABELS[Run.gamma])
    every_axes[0].set_ylabel("tokens emitted per step")
    return with_legend(figure, columns=2)
