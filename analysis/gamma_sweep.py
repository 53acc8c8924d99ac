"""How many tokens should the draft propose? Speed and acceptance by gamma, for every verifier of a sweep."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd

from specbench.metrics import theory
from specbench.metrics.acceptance import position_estimates
from specbench.metrics.intervals import Estimate
from specbench.metrics.results import STEPS
from specbench.metrics.standing import standing
from specbench.reports import Picture, Report
from specbench.reports.cells import interval
from specbench.reports.plots import decode as plots

from .decoding import build_sweep, main_sweep, setting

QUESTION = """\
How many tokens should the draft propose? With more of them a step may emit more, but they cost time to draft and to
score, and those behind the first rejection are wasted."""
SPEEDUP = """\
Tokens a second over those of plain decoding, timed side by side through the same engine; bars are 95% intervals.
Above the dashed line, plain decoding, speculation pays. An arrow names the fastest setting, where the data show which
it is."""
LENGTH = """\
Tokens that one pass of the target yields; bars are 95% intervals. A dashed curve is what independent acceptance at the
measured overlap would give (equation 1 of arXiv 2211.17192); where overlaps differ, each series has one in its colour.
The dotted line is the ceiling, a perfect draft. Measurements below the dashed curve say that acceptance comes in runs,
or that blocks were cut short at the end of texts."""
POSITIONS = """\
The longest draft, position by position; bars are 95% intervals. The share where all before it were accepted rises
where easy stretches carry on, and falls where the draft strays the further it runs ahead. The share of all drafted
multiplies it up: what is left of the block at each position."""


def build(run_dir: Path) -> Report:
    """The report of a gamma sweep.

    Raises:
        ConfigError: a folder without results.
    """
    return build_sweep(run_dir, "gamma_sweep", "gamma", QUESTION, closed_form, _pictures)


def closed_form(results: pd.DataFrame) -> str:
    """What theory expects of the run of the highest speedup, from its overlap and draft cost; empty without overlap."""
    best = results.loc[results["speedup"].idxmax()]
    if pd.isna(best["overlap"]) or best["drafted"] == 0:
        return ""
    overlap = min(best["overlap"], 1.0)  # a mean of overlaps may round beyond 1
    cost_ratio = (best["seconds_draft"] / best["drafted"]) / (best["plain_seconds"] / best["plain_tokens"])
    here = theory.expected_speedup(overlap, best["gamma"], cost_ratio)
    gamma = theory.best_gamma(overlap, cost_ratio)
    highest = theory.expected_speedup(overlap, gamma, cost_ratio)
    return (
        f"In the run of the highest speedup the overlap was {interval(best, 'overlap')}, and drafting a token took "
        f"{cost_ratio:.2f} of the time of decoding one plainly. Were acceptance independent, scoring a block as fast "
        f"as one plain step and verifying free, the speedup would be {here:.2f} there and at most {highest:.2f}, at "
        f"gamma {gamma} (theorem 3.8 of arXiv 2211.17192)."
    )


def _pictures(run_dir: Path, results: pd.DataFrame) -> Iterator[Picture]:
    marked = standing(results).fastest if len(results) > 1 else None
    where = setting(results)
    figure = plots.speedup_against_gamma(results, marked)
    question = "At which gamma does speculation pay, and how much?"
    yield Picture("speedup_against_gamma", figure, question, f"{SPEEDUP} {where}")
    figure = plots.acceptance_length_against_gamma(results)
    question = "How many tokens does one pass of the target yield?"
    yield Picture("acceptance_length_against_gamma", figure, question, f"{LENGTH} {where}")
    longest = results.loc[results["gamma"].idxmax()]
    if longest["gamma"] > 0:
        title = f"gamma {longest['gamma']}, {longest['series']}"
        figure = plots.position_rates(*_estimates(run_dir, longest), title)
        question = "How far into a draft are tokens still accepted?"
        yield Picture("position_rates", figure, question, f"{POSITIONS} {where}")


def _estimates(run_dir: Path, row: pd.Series) -> Sequence[Sequence[Estimate | None]]:
    """Rates by position of a run, with their intervals if its step log is there."""
    path = run_dir / str(row["job"]) / STEPS
    if path.is_file():
        return position_estimates(pd.read_parquet(path), row["gamma"])
    return [
        [None if rate is None or pd.isna(rate) else Estimate(rate, math.nan, math.nan) for rate in row[name]]
        for name in ("joint_rates", "conditional_rates")
    ]


if __name__ == "__main__":
    main_sweep("gamma_sweep", build)
