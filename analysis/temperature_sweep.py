"""How do acceptance, overlap and speedup change from greedy decoding to hot sampling?"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from specbench.metrics.columns import typed_row
from specbench.reports import Report
from specbench.reports.cells import NamedRun, Run
from specbench.reports.plots import decode as plots
from specbench.reports.templates import words

from .command import main
from .decoding import build_sweep, read_run
from .page import Shown


def build(run_dir: Path) -> Report:
    """The report of a temperature sweep."""
    results = read_run(run_dir, Run.temperature)
    figures: dict[str, Shown] = {
        "acceptance_against_temperature": plots.acceptance_against_temperature(results),
        "speedup_against_temperature": plots.speedup_against_temperature(results),
    }
    return build_sweep(run_dir, "temperature_sweep", Run.temperature, results, figures, overlap_range(results))


def overlap_range(results: pd.DataFrame) -> str:
    """The temperatures of the lowest and highest overlap; empty where no drafter had probabilities."""
    rows = results[results[Run.overlap].notna()]
    if rows[Run.temperature].nunique() < 2:
        return ""
    places = rows[Run.overlap].idxmin(), rows[Run.overlap].idxmax()
    lowest, highest = (typed_row(rows.loc[place], NamedRun) for place in places)
    return words("temperature_sweep.overlaps", lowest, highest)


if __name__ == "__main__":
    main("temperature_sweep", build)
