"""How many tokens should the draft propose? Speed and acceptance by gamma, for every verifier of a sweep."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from specbench.metrics import theory
from specbench.metrics.acceptance import position_estimates
from specbench.metrics.intervals import Estimate
from specbench.metrics.ranking import ranking
from specbench.metrics.results import STEPS
from specbench.reports import Report
from specbench.reports.cells import interval
from specbench.reports.markdown import literal
from specbench.reports.plots import decode as plots
from specbench.reports.templates import words

from .command import main
from .decoding import build_sweep, read_run
from .folder import read_table
from .page import Shown


class ClosedForm(NamedTuple):
    """What theory expects of a run, and of the best gamma, at the run's overlap and cost of a drafted token."""

    overlap: str
    cost_ratio: float
    speedup: float
    highest: float
    gamma: int


def build(run_dir: Path) -> Report:
    """The report of a gamma sweep."""
    results = read_run(run_dir, "gamma")
    theory = words("gamma_sweep.theory", closed_form(results))
    return build_sweep(run_dir, "gamma_sweep", "gamma", results, theory, figures(run_dir, results))


def closed_form(results: pd.DataFrame) -> ClosedForm | None:
    """Of the run of the highest speedup; None without overlap, and for drafts that are trees."""
    best = results.iloc[ranking(results).best]
    if pd.isna(best["overlap"]) or best["drafted"] == 0 or best["drafted_per_step"] > best["gamma"]:
        return None
    overlap = min(best["overlap"], 1.0)  # a mean of overlaps may round beyond 1
    # Feeding prompts is no drafting. What feeding both models takes beyond the target alone is the draft's part.
    prompts, plain_prompts = best[["seconds_prompts", "plain_seconds_prompts"]].astype(float).fillna(0.0)
    drafting = best["seconds_draft"] - max(prompts - plain_prompts, 0.0)
    plain = best["plain_seconds"] - plain_prompts
    cost_ratio = max(drafting / best["drafted"], 0.0) / (plain / best["plain_tokens"])
    gamma = theory.best_gamma(overlap, cost_ratio)
    here, highest = (theory.expected_speedup(overlap, length, cost_ratio) for length in (best["gamma"], gamma))
    return ClosedForm(interval(best, "overlap"), cost_ratio, here, highest, gamma)


def figures(run_dir: Path, results: pd.DataFrame) -> dict[str, Shown]:
    """The figures of this sweep alone."""
    outcome = ranking(results)
    title = literal(words("gamma_sweep.title", results.iloc[outcome.best], outcome))
    marked = outcome.fastest if len(results) > 1 else None
    longest = results.loc[results["gamma"].idxmax()]
    name = f"gamma {longest['gamma']}, {longest['series']}"
    return {
        "speedup_against_gamma": plots.speedup_against_gamma(results, marked, title),
        "acceptance_length_against_gamma": plots.acceptance_length_against_gamma(results),
        "position_rates": plots.position_rates(*_estimates(run_dir, longest), name),
    }


def _estimates(run_dir: Path, row: pd.Series) -> Sequence[Sequence[Estimate | None]]:
    """Rates by position of a run, with their intervals if its step log is there."""
    steps = read_table(run_dir, STEPS, remedy=None)
    if len(steps) and (steps["job"] == row["job"]).any():
        return position_estimates(steps[steps["job"] == row["job"]], int(row["gamma"]))
    return [
        [None if rate is None or pd.isna(rate) else Estimate(rate, math.nan, math.nan) for rate in row[name]]
        for name in ("joint_rates", "conditional_rates")
    ]


if __name__ == "__main__":
    main("gamma_sweep", build)
