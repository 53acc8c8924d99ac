"""Figures of replayed traces, and of the speedups that traces and costs predict. Tables have the columns of replay/."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from specbench.metrics.columns import columns_of
from specbench.replay.cost.forecast import PredictedRow
from specbench.replay.cost.model import CostModel, CostRow
from specbench.replay.summary import PolicyRow, ReplayRow
from specbench.replay.survival import ARGMAX
from specbench.reports.cells import Run
from specbench.reports.plots.decode import AXIS_LABELS
from specbench.reports.plots.looks import BLUE, DASHED, Look, in_order, looks
from specbench.reports.plots.style import GREY, INK, draw_band, draw_points, panels, style, with_legend
from specbench.rules import RULES

Replayed, Policy = columns_of(ReplayRow), columns_of(PolicyRow)
Cost, Point = columns_of(CostRow), columns_of(PredictedRow)


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
