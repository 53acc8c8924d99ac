"""How do acceptance, overlap and speedup change from greedy decoding to hot sampling?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from specbench.reports import Picture, Report
from specbench.reports.cells import interval
from specbench.reports.plots import decode as plots

from .decoding import build_sweep, main_sweep, setting

QUESTION = "How do acceptance, overlap and speedup change from greedy decoding (temperature 0) to hot sampling?"
ACCEPTANCE = """\
Left, the share of drafted tokens that was accepted, where those behind a rejection count as drafted; right, the chance
that a single drafted token is accepted; bars are 95% intervals. At temperature 0 both distributions are one-hot, and
the overlap is the share of positions at which draft and target agree on the likeliest token."""
SPEEDUP = """\
Tokens a second over those of plain decoding at the same temperature, timed side by side through the same engine; bars
are 95% intervals. Above the dashed line, plain decoding, speculation pays."""


def build(run_dir: Path) -> Report:
    """The report of a temperature sweep.

    Raises:
        ConfigError: a folder without results.
    """
    return build_sweep(run_dir, "temperature_sweep", "temperature", QUESTION, overlap_range, _pictures)


def overlap_range(results: pd.DataFrame) -> str:
    """The temperatures of the lowest and highest overlap; empty where no drafter had probabilities."""
    known = results[results["overlap"].notna()]
    if known["temperature"].nunique() < 2:
        return ""
    low, high = (known.loc[i] for i in (known["overlap"].idxmin(), known["overlap"].idxmax()))
    return (
        f"Overlap goes from {interval(low, 'overlap')} at temperature {low['temperature']:g} ({low['series']}) to "
        f"{interval(high, 'overlap')} at temperature {high['temperature']:g} ({high['series']})."
    )


def _pictures(_: Path, results: pd.DataFrame) -> Iterator[Picture]:
    where = setting(results)
    figure = plots.acceptance_against_temperature(results)
    question = "How does acceptance change from greedy to hot sampling?"
    yield Picture("acceptance_against_temperature", figure, question, f"{ACCEPTANCE} {where}")
    figure = plots.speedup_against_temperature(results)
    question = "At which temperatures does speculation pay?"
    yield Picture("speedup_against_temperature", figure, question, f"{SPEEDUP} {where}")


if __name__ == "__main__":
    main_sweep("temperature_sweep", build)
