"""Which tests catch which real bugs, after how many draws? The sensitivity table of the zoo."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from specbench.core.errors import ConfigError
from specbench.metrics.results import read_jobs
from specbench.reports import Picture, Report, Table
from specbench.reports.plots import exactness as plots
from specbench.reports.text import section

from .command import main
from .folder import read_rows, report_of

QUESTION = "Which tests catch which real bugs, after how many draws, and what do the tests of other projects see?"
NOTE = """\
Caught by: what the certificate names, the largest bias that was located, or the test with the strongest evidence.
Needed: requests after which that catch is sure, for a test with power 0.99, estimated from its statistic. True TV:
total variation a step from the target's joint with the code's thresholds located, the largest over the small fixtures;
a dash if they cannot be (noise hashed from the uniforms, a request that depends on its batch), with what was observed
in brackets. Distance ratio, identical rows, first token: the tests of other projects, re-created from their
description."""
HEAT = """\
Steps that each test needs to catch each bug with power 0.99, estimated from what it saw; white where it saw nothing.
Dark cells are strong tests. No column is dark everywhere: the fixtures and tests are there for one another. Right:
what the tests of other projects say of the same code: + caught, a dash missed."""


def build(run_dir: Path) -> Report:
    """The report of a run.

    Raises:
        ConfigError: a folder without results of this experiment.
    """
    names = read_rows(run_dir).set_index("job")["verifier"]
    tests, others, bounds, bias = (
        _read(run_dir, name).assign(verifier=lambda rows: rows["job"].map(names))
        for name in ("sensitivity", "elsewhere", "bounds", "bias")
    )
    table = sensitivity_table(tests, others, bounds, bias)
    caption = f"{len(table)} verifiers, the tests that catch them, and what they need."
    shown = Table("table", table, table, caption, NOTE, left=("verifier", "caught by"))
    sections = [
        section("Result", _caught(table, list(others["test"].unique()))),
        section("Table", shown),
        section("Figures", _heat_map(tests, others)),
    ]
    return report_of(run_dir, "flawed_zoo", "The zoo", QUESTION, sections)


def _read(run_dir: Path, name: str) -> pd.DataFrame:
    rows = read_jobs(run_dir, f"{name}.parquet")
    if rows.empty:
        raise ConfigError("RUN_DIR", run_dir, f"no {name}.parquet in its jobs", "Give a run of +exp=flawed_zoo.")
    return rows.sort_values("job", kind="stable")


def _caught(table: pd.DataFrame, others: list[str]) -> str:
    flawed = table["verifier"].str.startswith("flawed/")
    caught = table["caught by"] != "-"
    missed = ", ".join(table[flawed & ~caught]["verifier"]) or "none"
    alarms = ", ".join(table[~flawed & caught]["verifier"]) or "none"
    elsewhere = "; ".join(f"{test}: {int((table[flawed][test] == 'caught').sum())}" for test in others)
    return (
        f"{int((flawed & caught).sum())} of {int(flawed.sum())} flawed verifiers caught; missed: "
        f"{missed}. Sound verifiers rejected: {alarms}. Caught by the tests of other projects: {elsewhere}."
    )


def _heat_map(tests: pd.DataFrame, others: pd.DataFrame) -> Picture:
    tests, others = (each.assign(verifier=each["verifier"].str.removeprefix("flawed/")) for each in (tests, others))
    tests["column"] = tests["fixture"] + ": " + tests["test"]
    question = "Which test catches which bug, after how many steps?"
    return Picture("sensitivity", plots.sensitivity(tests, others), question, HEAT)


def sensitivity_table(
    tests: pd.DataFrame, others: pd.DataFrame, bounds: pd.DataFrame, bias: pd.DataFrame
) -> pd.DataFrame:
    """One line a verifier, as text."""
    rows = []
    for name, its in tests.groupby("verifier", sort=False):
        caught = its[its["rejected_at"].notna()]
        known = bounds[bounds["verifier"] == name]
        first = _strongest(caught, known)
        enumerated = known[(known["method"] == "located") & (known["differing"] == 0)]["located"]
        tv = enumerated.max() if len(enumerated) > len(known) // 2 else float("nan")
        observed = bias[bias["verifier"] == name]["observed_tv"].max()
        seen = others[others["verifier"] == name].set_index("test")["caught"]
        rows.append(
            {
                "verifier": name,
                "caught by": "-" if first is None else f"{first['fixture']}: {first['test']}",
                "draws": "-" if first is None else f"{int(first['rejected_at']):,}",
                "needed": "-" if first is None or pd.isna(first["needed"]) else f"{first['needed']:,.0f}",
                "tests that caught it": str(len(caught)),
                "true TV": f"- ({observed:.2g})" if pd.isna(tv) else f"{tv:.2g}",
                **{test: "caught" if value else "missed" for test, value in seen.items()},
            }
        )
    return pd.DataFrame(rows)


def _strongest(caught: pd.DataFrame, bounds: pd.DataFrame) -> pd.Series | None:
    """The largest bias that was located; failing that, what cannot be chance, and the smallest p-value."""
    located = caught[caught["test"] == "location"]
    if len(located):
        least = bounds.set_index("fixture")["least"]
        return located.loc[located["fixture"].map(least).idxmax()]
    if caught.empty:
        return None
    hard = caught["test"].isin(["form", "extremes"])
    order = caught.assign(soft=~hard).sort_values(["gates", "soft", "p_value"], ascending=[False, True, True])
    return order.iloc[0]


if __name__ == "__main__":
    short = ["verifier", "caught by", "draws", "needed", "true TV"]
    main("flawed_zoo", build, lambda report: report.tables[0].shown[short])
