"""Every definition of acceptance for the runs of a sweep, and where two definitions would rank two runs differently."""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from specbench.core.errors import SpecbenchError
from specbench.metrics.definitions import METRICS, POSITION_METRICS, all_metrics, opposite_rankings
from specbench.metrics.ratios import StepLog, rates_by_position
from specbench.metrics.results import STEPS
from specbench.metrics.run_settings import distinguishing_columns, with_settings
from specbench.reports import Report, Table, markdown
from specbench.reports.cells import Run, number, plain

from .folder import read_rows, read_table
from .page import Shown, page

LEFT = ("definition", "formula", "owner")
Names = tuple[str, ...]  # of definitions


def named_runs(run_dir: Path, rows: pd.DataFrame) -> list[tuple[str, int, pd.DataFrame]]:
    """Name, gamma and step log of each decoding run of a sweep, whose rows are given.

    Raises:
        ConfigError: none of its jobs left a step log.
    """
    rows, steps = with_settings(rows), read_table(run_dir, STEPS, remedy="Give a run of protocol=decode.")
    settings = distinguishing_columns(rows, Run.job)
    runs = []
    for _, row in rows[rows[Run.job].isin(steps[Run.job])].iterrows():
        name = ", ".join(f"{key} {plain(row[key])}" for key in settings) or f"job {row[Run.job]}"
        runs.append((name, int(row[Run.gamma]), steps[steps[Run.job] == row[Run.job]]))
    return runs


def build(run_dir: Path) -> Report:
    """The definitions, their values for every run, the disagreements, and the sources.

    Runs that no definition tells apart are shown as one. Definitions without a value are left out.
    """
    rows, names, numbers = read_rows(run_dir), defaultdict[str, list[str]](list), {}
    for name, gamma, steps in named_runs(run_dir, rows):
        metrics, positions = all_metrics(steps, gamma), _positions(gamma, steps)
        key = f"{metrics.to_json()} {positions.to_json()}"
        names[key].append(name)
        numbers[key] = metrics, positions
    runs = [(" and ".join(names[key]), *of_run) for key, of_run in numbers.items()]
    values = pd.DataFrame({name: metrics for name, metrics, _ in runs}).dropna(how="all")
    kept = [metric for metric in METRICS if metric.name in values.index]
    table = pd.DataFrame([(metric.name, metric.formula, metric.owner) for metric in kept], columns=list(LEFT))
    for name in values:
        table[name] = [number(value, ".4f") for value in values[name]]
    shown: dict[str, Shown] = {"values": Table("values", table, left=LEFT)}
    by_position = {f"positions_{i}": (name, lines) for i, (name, _, lines) in enumerate(runs) if len(lines.columns) > 3}
    shown |= {place: Table(place, lines, left=LEFT) for place, (_, lines) in by_position.items()}
    distinct = values.drop_duplicates().index  # of definitions that agree on every run the first
    return page(
        run_dir,
        rows,
        "metrics",
        shown,
        positions=[(place, name) for place, (name, _) in by_position.items()],
        opposed=_opposed([(name, metrics.loc[distinct]) for name, metrics, _ in runs]),
        definitions=[*kept, *(POSITION_METRICS if by_position else ())],
    )


def _positions(gamma: int, steps: pd.DataFrame) -> pd.DataFrame:
    """The rates by position; without such columns if nothing was drafted."""
    log = StepLog.of(steps, gamma)
    return pd.DataFrame(
        dict(zip(LEFT, (metric.name, metric.formula, metric.owner), strict=True))
        | {str(i): number(rate, ".3f") for i, rate in enumerate(rates_by_position(log, metric.formula), start=1)}
        for metric in POSITION_METRICS
    )


def _opposed(runs: Sequence[tuple[str, pd.Series]]) -> list[tuple[Names, Names, str]]:
    """Each disagreement once: the definitions of one order, those of the other, and the pairs of runs.

    Args:
        runs: of opposite_rankings.
    """
    disagreements = defaultdict[tuple[str, str], list[tuple[str, str]]](list)
    for first, second, up, down in opposite_rankings(runs):
        disagreements[first, second].append((up, down))
    pairs: dict[tuple[Names, Names], list[str]] = {}
    for (first, second), definitions in disagreements.items():
        up, down = (tuple(dict.fromkeys(names)) for names in zip(*definitions, strict=True))
        if (down, up) in pairs:
            pairs[down, up].append(f"{second} against {first}")
        else:
            pairs.setdefault((up, down), []).append(f"{first} against {second}")
    return [(up, down, "; ".join(against)) for (up, down), against in pairs.items()]


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
