"""Every definition of acceptance for the runs of a sweep, and where two definitions would rank two runs differently."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pandas as pd

from specbench.errors import ConfigError, SpecbenchError
from specbench.metrics.definitions import METRICS, POSITION_METRICS, all_metrics, opposite_rankings
from specbench.metrics.ratios import StepLog
from specbench.results import STEPS, read_jobs

from .pages import markdown
from .report import varying
from .sections import read_rows

DEFINITIONS = (*METRICS, *POSITION_METRICS)


def named_runs(run_dir: Path) -> list[tuple[str, int, pd.DataFrame]]:
    """Name, gamma and step log of each decoding run of a sweep.

    Raises:
        ConfigError: none of its jobs left a step log.
    """
    rows, steps = read_rows(run_dir), read_jobs(run_dir, STEPS)
    if steps.empty:
        raise ConfigError("RUN_DIR", run_dir, "no steps.parquet in its jobs", "Give a run of protocol=decode.")
    settings = ["verifier", *varying(rows, "job")]
    runs = []
    for _, row in rows[rows["job"].isin(steps["job"])].iterrows():
        name = ", ".join(f"{key} {row[key]}" for key in settings if rows[key].nunique() > 1) or f"job {row['job']}"
        runs.append((name, int(row["gamma"]), steps[steps["job"] == row["job"]]))
    return runs


def page(run_dir: Path) -> str:
    """The definitions, their values for every run, the disagreements, and the sources, as Markdown.

    Raises:
        ConfigError: a folder without step logs.
    """
    runs = [(name, gamma, steps, all_metrics(steps, gamma)) for name, gamma, steps in named_runs(run_dir)]
    values = pd.DataFrame({"metric": [m.name for m in METRICS], "formula": [m.formula for m in METRICS]})
    values["owner"] = [m.owner for m in METRICS]
    for name, _, _, metrics in runs:
        values[name] = ["-" if pd.isna(value) else f"{value:.4f}" for value in metrics["value"]]
    opposed = opposite_rankings([(name, metrics) for name, _, _, metrics in runs])
    lines = [f"- {a} against {b}: the second is higher by *{up}*, lower by *{down}*" for a, b, up, down in opposed]
    sections = [
        "# The same steps by every definition",
        markdown(values),
        "a: accepted, d: drafted, e: emitted tokens of a step; N: steps; gamma: the setting of the run. An owner's own "
        "count may differ in what the last section says.",
        "## By position in the block",
        *(_positions(name, gamma, steps) for name, gamma, steps, _ in runs if gamma > 0),
        "## Where definitions rank runs differently",
        "\n".join(lines) or "Nowhere: all definitions put these runs into one order.",
        "## Where each is written down",
        "\n".join(f"- *{m.name}*: {m.source}{m.differs and f'. Differs: {m.differs}'}" for m in DEFINITIONS),
    ]
    return "\n\n".join(sections) + "\n"


def _positions(name: str, gamma: int, steps: pd.DataFrame) -> str:
    log = StepLog.of(steps, gamma)
    table = pd.DataFrame(
        [
            {"rate": metric.name, "formula": metric.formula, "owner": metric.owner}
            | {str(i): "-" if rate is None else f"{rate:.3f}" for i, rate in enumerate(metric.compute(log), start=1)}
            for metric in POSITION_METRICS
        ]
    )
    return f"{name}:\n\n{markdown(table)}"


def main() -> None:
    """Prints the page of a run; exits with 2 where it cannot be read."""
    parser = argparse.ArgumentParser(prog=f"python -m {__package__}.metrics", description=__doc__)
    parser.add_argument("run_dir", metavar="RUN_DIR", type=Path, help="a folder of outputs/<exp>/<time>")
    try:
        print(page(parser.parse_args().run_dir))
    except SpecbenchError as error:
        print(error, file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
