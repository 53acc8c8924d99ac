"""How many tokens should the draft propose? Speed and acceptance by gamma, for every verifier of a sweep."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from specbench.metrics import theory
from specbench.metrics.acceptance import position_estimates
from specbench.metrics.columns import columns_of, typed_row
from specbench.metrics.intervals import Estimate
from specbench.metrics.ranking import ranking
from specbench.metrics.results import STEPS
from specbench.metrics.run_row import RunRow
from specbench.reports import Report
from specbench.reports.cells import NamedRun, interval
from specbench.reports.markdown import literal
from specbench.reports.plots import decode as plots
from specbench.reports.templates import words

from .command import main
from .decoding import build_sweep, read_run
from .folder import read_table
from .page import Shown


@dataclass(frozen=True, kw_only=True)
class TimedRun(RunRow):
    """A run that was timed."""

    gamma: int
    drafted: int
    seconds_draft: float
    plain_seconds: float
    plain_tokens: int


Run = columns_of(TimedRun)


class ClosedForm(NamedTuple):
    """What theory expects of a run, and of the best gamma, at the run's overlap and cost of a drafted token."""

    overlap: str
    cost_ratio: float
    speedup: float
    highest: float
    gamma: int


def build(run_dir: Path) -> Report:
    """The report of a gamma sweep."""
    results = read_run(run_dir, Run.gamma)
    theory = words("gamma_sweep.theory", closed_form(results))
    return build_sweep(run_dir, "gamma_sweep", Run.gamma, results, theory, figures(run_dir, results))


def closed_form(results: pd.DataFrame) -> ClosedForm | None:
    """Of the run of the highest speedup; None without overlap, and for drafts that are trees."""
    best = typed_row(results.iloc[ranking(results).best], TimedRun)
    if best.overlap is None or best.drafted == 0 or (best.drafted_per_step or 0.0) > best.gamma:
        return None
    overlap = min(best.overlap, 1.0)  # a mean of overlaps may round beyond 1
    # Feeding prompts is no drafting. What feeding both models takes beyond the target alone is the draft's part.
    prompts, plain_prompts = best.seconds_prompts or 0.0, best.plain_seconds_prompts or 0.0
    drafting = best.seconds_draft - max(prompts - plain_prompts, 0.0)
    plain = best.plain_seconds - plain_prompts
    cost_ratio = max(drafting / best.drafted, 0.0) / (plain / best.plain_tokens)
    gamma = theory.best_gamma(overlap, cost_ratio)
    here, highest = (theory.expected_speedup(overlap, length, cost_ratio) for length in (best.gamma, gamma))
    return ClosedForm(interval(best, Run.overlap), cost_ratio, here, highest, gamma)


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
