"""Which tests catch which real bugs, after how many draws? The sensitivity table of the zoo."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from specbench.metrics.columns import columns_of, typed, typed_row
from specbench.metrics.exactness_rows import BIAS, BOUNDS, LOCATION, SENSITIVITY, BoundRow, RuleBiasRow, SensitivityRow
from specbench.reports import Report, Table
from specbench.reports.cells import NONE, Run, number
from specbench.reports.plots import exactness as plots

from .command import main
from .folder import read_rows, read_table
from .page import page

Test, Bound, Bias = columns_of(SensitivityRow), columns_of(BoundRow), columns_of(RuleBiasRow)


def build(run_dir: Path) -> Report:
    """The report of a run."""
    rows = read_rows(run_dir)
    tests, bounds, bias = (
        read_table(run_dir, name, rows, [Run.verifier], remedy="Give a run of +exp=flawed_zoo.")
        for name in (SENSITIVITY, BOUNDS, BIAS)
    )
    table = sensitivity_table(tests, bounds, bias)
    short = tests.assign(
        verifier=tests[Run.verifier].str.removeprefix("flawed/"), column=tests[Test.fixture] + ": " + tests[Test.test]
    )
    shown = {
        "table": Table("table", table, table, left=("verifier", "caught by")),
        "sensitivity": plots.sensitivity(short),
    }
    return page(run_dir, rows, "flawed_zoo", shown, table=table)


def sensitivity_table(tests: pd.DataFrame, bounds: pd.DataFrame, bias: pd.DataFrame) -> pd.DataFrame:
    """One line a verifier, as text."""
    rows = []
    for name, its in tests.groupby(Run.verifier, sort=False):
        caught = its[its[Test.rejected_at].notna()]
        fixtures = bounds[bounds[Run.verifier] == name]
        first = _strongest(caught, fixtures)
        enumerated = fixtures[(fixtures[Bound.method] == "located") & (fixtures[Bound.differing] == 0)][Bound.located]
        tv = enumerated.max() if len(enumerated) > len(fixtures) // 2 else float("nan")
        observed = bias[bias[Run.verifier] == name][Bias.observed_tv].max()
        rows.append(
            {
                "verifier": name,
                "caught by": f"{first.fixture}: {first.test}" if first else NONE,
                "draws": f"{first.rejected_at:,.0f}" if first else NONE,
                "needed": number(first.needed, ",.0f") if first else NONE,
                "tests that caught it": str(len(caught)),
                "true TV": f"{NONE} ({observed:.2g})" if pd.isna(tv) else f"{tv:.2g}",
            }
        )
    return pd.DataFrame(rows)


def _strongest(caught: pd.DataFrame, bounds: pd.DataFrame) -> SensitivityRow | None:
    """The largest bias that was located; failing that, what cannot be chance, and the smallest p-value."""
    located = caught[caught[Test.test] == LOCATION]
    if len(located):
        least = bounds.set_index(Bound.fixture)[Bound.least]
        return typed_row(located.loc[located[Test.fixture].map(least).idxmax()], SensitivityRow)
    hard = ("form", "extremes")
    tests = typed(caught, SensitivityRow)
    return min(tests, key=lambda row: (not row.gates, row.test not in hard, row.p_value), default=None)


if __name__ == "__main__":
    main("flawed_zoo", build)
