"""How many tokens should the draft propose? Speed and acceptance by gamma, for every verifier of a sweep."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from specbench.metrics.acceptance import position_estimates
from specbench.metrics.columns import typed_row
from specbench.metrics.intervals import Estimate
from specbench.metrics.ranking import ranking
from specbench.metrics.results import STEPS
from specbench.metrics.run_row import RunRow
from specbench.reports import Report
from specbench.reports.cells import NamedRun, Run
from specbench.reports.markdown import literal
from specbench.reports.plots import decode as plots
from specbench.reports.templates import words

from .command import main
from .decoding import build_sweep, read_run
from .folder import read_table
from .page import Shown


def build(run_dir: Path) -> Report:
    """The report of a gamma sweep."""
    results = read_run(run_dir, Run.gamma)
    return build_sweep(run_dir, "gamma_sweep", Run.gamma, results, figures(run_dir, results))


def figures(run_dir: Path, results: pd.DataFrame) -> dict[str, Shown]:
    """The figures of this sweep alone."""
    outcome = ranking(results)
    title = literal(words("gamma_sweep.title", typed_row(results.iloc[outcome.best], RunRow), outcome))
    marked = outcome.fastest if len(results) > 1 else None
    longest = typed_row(results.loc[results[Run.gamma].idxmax()], NamedRun)
    name = f"gamma {longest.gamma}, {longest.series}"
    return {
        "speedup_against_gamma": plots.speedup_against_gamma(results, marked, title),
        "acceptance_length_against_gamma": plots.acceptance_length_against_gamma(results),
        "position_rates": plots.position_rates(*_estimates(run_dir, longest), name),
    }


def _estimates(run_dir: Path, run: RunRow) -> Sequence[Sequence[Estimate | None]]:
    """Rates by position of a run, with their intervals if its step log is there."""
    steps = read_table(run_dir, STEPS, remedy=None)
    if len(steps) and (steps[Run.job] == run.job).any():
        return position_estimates(steps[steps[Run.job] == run.job], run.gamma or 0)
    return [
        [None if rate is None or pd.isna(rate) else Estimate(rate, math.nan, math.nan) for rate in rates or ()]
        for rates in (run.joint_rates, run.conditional_rates)
    ]


if __name__ == "__main__":
    main("gamma_sweep", build)
