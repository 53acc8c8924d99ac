"""Which tests catch which real bugs, after how many draws? The sensitivity table of the zoo."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from specbench.reports import Report, Table
from specbench.reports.plots import exactness as plots

from .command import main
from .folder import read_rows, read_table
from .page import page


def build(run_dir: Path) -> Report:
    """The report of a run."""
    rows = read_rows(run_dir)
    tests, bounds, bias = (
        read_table(run_dir, f"{name}.parquet", rows, ["verifier"], remedy="Give a run of +exp=flawed_zoo.")
        for name in ("sensitivity", "bounds", "bias")
    )
    table = sensitivity_table(tests, bounds, bias)
    short = tests.assign(
        verifier=tests["verifier"].str.removeprefix("flawed/"), column=tests["fixture"] + ": " + tests["test"]
    )
    shown = {
        "table": Table("table", table, table, left=("verifier", "caught by")),
        "sensitivity": plots.sensitivity(short),
    }
    return page(run_dir, rows, "flawed_zoo", shown, table=table)


def sensitivity_table(tests: pd.DataFrame, bounds: pd.DataFrame, bias: pd.DataFrame) -> pd.DataFrame:
    """One line a verifier, as text."""
    rows = []
    for name, its in tests.groupby("verifier", sort=False):
        caught = its[its["rejected_at"].notna()]
        fixtures = bounds[bounds["verifier"] == name]
        first = _strongest(caught, fixtures)
        enumerated = fixtures[(fixtures["method"] == "located") & (fixtures["differing"] == 0)]["located"]
        tv = enumerated.max() if len(enumerated) > len(fixtures) // 2 else float("nan")
        observed = bias[bias["verifier"] == name]["observed_tv"].max()
        rows.append(
            {
                "verifier": name,
                "caught by": "-" if first is None else f"{first['fixture']}: {first['test']}",
                "draws": "-" if first is None else f"{int(first['rejected_at']):,}",
                "needed": "-" if first is None or pd.isna(first["needed"]) else f"{first['needed']:,.0f}",
                "tests that caught it": str(len(caught)),
                "true TV": f"- ({observed:.2g})" if pd.isna(tv) else f"{tv:.2g}",
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
    main("flawed_zoo", build)
