"""Figures of decoding with several engines. ``results`` has the columns of results.RunRow."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from specbench.reports.plots.decode import AXIS_LABELS
from specbench.reports.plots.looks import DASHDOT, DASHED, DOTTED, in_order
from specbench.reports.plots.style import GREY, legend, panels, style

LINES = (DASHED, DOTTED, DASHDOT, (0, (1, 3)), (0, (6, 2)))


@style()
def speed_against_gamma(results: pd.DataFrame, others: pd.DataFrame) -> Figure:
    """Tokens a second by gamma, a panel a batch size, a line an engine; plain decoding stands at gamma 0.

    Args:
        others: other decoders' ``name``, ``batch``, ``gamma`` and ``tokens_per_second``; one that drafts nothing
            (gamma 0) is a level.
    """
    batches, engines = sorted(results["batch_size"].unique()), list(dict.fromkeys(results["engine"]))
    names = list(dict.fromkeys(others["name"]))
    figure, every_axes = panels(len(batches), 3, (1 / min(len(batches), 3), 2.5), margin=0.5, sharey=False)
    for axes, batch in zip(every_axes, batches, strict=True):
        here = results[results["batch_size"] == batch]
        for engine, look in in_order(engines).items():
            rows = here[here["engine"] == engine].sort_values("gamma")
            points = {0: rows["plain_tokens_per_second"].median()}
            points |= rows[rows["gamma"] > 0].groupby("gamma")["tokens_per_second"].median().to_dict()
            axes.plot(list(points), list(points.values()), label=engine, **look.line)
        for place, name in enumerate(names):
            beside = others[(others["name"] == name) & (others["batch"] == batch)].dropna(subset="tokens_per_second")
            for speed in beside[beside["gamma"] == 0]["tokens_per_second"]:
                axes.axhline(speed, color=GREY, linewidth=0.9, linestyle=LINES[place % len(LINES)], label=name)
            drafting = beside[beside["gamma"] > 0].sort_values("gamma")
            if len(drafting):
                x, y = (drafting[column].to_numpy(dtype=float) for column in ("gamma", "tokens_per_second"))
                axes.plot(x, y, "x", color=GREY, linestyle=LINES[place % len(LINES)], markeredgecolor=GREY, label=name)
        axes.set(title=f"batch size {batch}", xlabel=AXIS_LABELS["gamma"], ylim=(0, None))
        axes.set_xticks(sorted({0, *here["gamma"]}))
    every_axes[0].set_ylabel("tokens a second")
    legend(figure, columns=3)
    return figure
