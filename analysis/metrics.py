"""Every definition of acceptance for the runs of a sweep, and where two definitions would rank two runs differently."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pandas as pd

from specbench.core.errors import SpecbenchError
from specbench.metrics.definitions import METRICS, POSITION_METRICS, all_metrics, opposite_rankings
from specbench.metrics.ratios import StepLog, rates_by_position
from specbench.metrics.results import STEPS
from specbench.metrics.run_settings import distinguishing_columns, with_settings
from specbench.reports import Report, Table, markdown
from specbench.reports.cells import number, plain

from .folder import read_rows, read_table
from .page import Shown, page

DEFINITIONS = (*METRICS, *POSITION_METRICS)


def named_runs(run_dir: Path) -> list[tuple[str, int, pd.DataFrame]]:
    """Name, gamma and step log of each decoding run of a sweep.

    Raises:
        ConfigError: none of its jobs left a step log.
    """
    rows, steps = with_settings(read_rows(run_dir)), read_table(run_dir, STEPS, remedy="Give a run of protocol=decode.")
    settings = distinguishing_columns(rows, "job")
    runs = []
    for _, row in rows[rows["job"].isin(steps["job"])].iterrows():
        name = ", ".join(f"{key} {plain(row[key])}" for key in settings) or f"job {row['job']}"
        runs.append((name, int(row["gamma"]), steps[steps["job"] == row["job"]]))
    return runs


def build(run_dir: Path) -> Report:
    """The definitions, their values for every run, the disagreements, and the sources."""
    runs = [(name, gamma, steps, all_metrics(steps, gamma)) for name, gamma, steps in named_runs(run_dir)]
    values = pd.DataFrame([(m.name, m.formula, m.owner) for m in METRICS], columns=["metric", "formula", "owner"])
    for name, _, _, metrics in runs:
        values[name] = [number(value, ".4f") for value in metrics]
    opposed = opposite_rankings([(name, metrics) for name, _, _, metrics in runs])
    shown: dict[str, Shown] = {"values": Table("values", values, left=("metric", "formula", "owner"))}
    positions = []
    for place, (name, gamma, steps, _) in enumerate(runs):
        if gamma > 0:
            table = f"positions_{place}"
            positions.append((table, name))
            shown[table] = _positions(table, gamma, steps)
    return page(None, "metrics", shown, positions=positions, opposed=opposed, definitions=DEFINITIONS)


def _positions(table: str, gamma: int, steps: pd.DataFrame) -> Table:
    log, lines = StepLog.of(steps, gamma), []
    for metric in POSITION_METRICS:
        rates = enumerate(rates_by_position(log, metric.formula), start=1)
        line = {"rate": metric.name, "formula": metric.formula, "owner": metric.owner}
        lines.append(line | {str(i): number(rate, ".3f") for i, rate in rates})
    return Table(table, pd.DataFrame(lines), left=("rate", "formula", "owner"))


def main() -> None:
    """Prints the page of a run; exits with 2 where it cannot be read."""
    parser = argparse.ArgumentParser(prog=f"python -m {__package__}.metrics", description=__doc__)
    parser.add_argument("run_dir", metavar="RUN_DIR", type=Path, help="a folder of outputs/<exp>/<time>")
    try:
        print(markdown.render(build(parser.parse_args().run_dir)))
    except SpecbenchError as error:
        print(error, file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
