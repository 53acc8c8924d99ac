"""Which tests catch which real bugs, after how many draws? The sensitivity table of the zoo."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from analysis.pages import Illustration, command_line, markdown, write_figures, write_page
from specbench.plots import exactness as plots
from specbench.results import read_jobs, read_results

QUESTION = "Which tests catch which real bugs, after how many draws, and what do the tests of other projects see?"
NOTE = """\
Caught by: the test that rejected it first (the smallest p-value among those of that look) and the steps drawn on its
fixture by then. Needed: steps after which that catch is sure with power 0.99, estimated from the statistic. True TV:
total variation a step from the target's joint, enumerated by searching the code's thresholds, the largest over the
small fixtures; a dash where the code cannot be enumerated (noise hashed from the uniforms, a request that depends on
its batch), with what was observed in brackets. Distance ratio,
identical rows, first token: the tests of other projects, re-created from their description."""
HEAT = """\
Steps that each test needs to catch each bug with power 0.99, estimated from what it saw; white where it saw nothing.
Dark cells are strong tests. No column is dark everywhere: the fixtures and tests are there for one another. Right:
what the tests of other projects say of the same code: + caught, a dash missed."""


def report(run_dir: Path) -> Path:
    """Writes report.md, table.csv and the heat map under ``run_dir``/report; returns the path of report.md.

    Raises:
        ConfigError: a folder without results.
    """
    names = read_results(run_dir).set_index("job")["verifier"]
    tests, others, exact, bias = (
        read_jobs(run_dir, f"{name}.parquet")
        .sort_values("job", kind="stable")
        .assign(verifier=lambda rows: rows["job"].map(names))
        for name in ("sensitivity", "elsewhere", "exact_tier", "bias")
    )
    table = sensitivity_table(tests, others, exact, bias)
    folder = run_dir / "report"
    folder.mkdir(parents=True, exist_ok=True)
    table.to_csv(folder / "table.csv", index=False)
    (folder / "table.md").write_text(markdown(table) + "\n", encoding="utf-8")
    short = {name: name.removeprefix("flawed/") for name in names}
    for each in (tests, others):
        each["verifier"] = each["verifier"].map(short)
    tests["column"] = tests["fixture"] + ": " + tests["test"]
    figure = plots.sensitivity(tests, others)
    shown = write_figures(folder, [Illustration("sensitivity", figure, HEAT)])
    flawed = table["verifier"].str.startswith("flawed/")
    caught = table["caught by"] != "-"
    missed = ", ".join(table[flawed & ~caught]["verifier"]) or "none"
    alarms = ", ".join(table[~flawed & caught]["verifier"]) or "none"
    elsewhere = "; ".join(f"{test}: {int((table[flawed][test] == 'caught').sum())}" for test in others["test"].unique())
    sections = [
        f"# The zoo\n\n{QUESTION}",
        f"## Result\n\n{int((flawed & caught).sum())} of {int(flawed.sum())} flawed verifiers caught; missed: "
        f"{missed}. Sound verifiers rejected: {alarms}. Caught by the tests of other projects: {elsewhere}.",
        f"## Table\n\n{markdown(table)}\n\n{NOTE}",
        f"## Figures\n\n{shown}",
    ]
    return write_page(folder, sections)


def _brief(run_dir: Path) -> pd.DataFrame:
    table = pd.read_csv(run_dir / "report" / "table.csv", dtype=str, keep_default_na=False)
    return table[["verifier", "caught by", "draws", "needed", "true TV"]]


def sensitivity_table(
    tests: pd.DataFrame, others: pd.DataFrame, exact: pd.DataFrame, bias: pd.DataFrame
) -> pd.DataFrame:
    """One line a verifier, as text."""
    rows = []
    for name, its in tests.groupby("verifier", sort=False):
        caught = its[its["rejected_at"].notna()]
        drawn = caught[caught["test"] != "enumeration"]
        # The statistical test that caught it first; failing those, what enumeration or acceptance say.
        drawn = drawn.sort_values(["gates", "rejected_at", "p_value"], ascending=[False, True, True])
        caught = pd.concat([drawn, caught[caught["test"] == "enumeration"]])
        first = caught.iloc[0] if len(caught) else None
        errors = exact[exact["verifier"] == name]
        drawn_on = errors[errors["fixture"] != "greedy"]
        enumerated = drawn_on["searched_tv"].fillna(drawn_on["injected_error"])
        tv = enumerated.max(skipna=False)
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


if __name__ == "__main__":
    command_line("flawed_zoo", report, _brief)
