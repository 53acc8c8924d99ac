"""On what share of draws does a verifier differ from its rule's plain twin, and is every difference rounding?"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from specbench.benchmark.tables import AGREEMENT, AGREEMENT_SCHEMA, DIFFERENCES
from specbench.core.errors import ConfigError
from specbench.reports import Report, Table, cells
from specbench.reports.cells import number

from .command import main
from .folder import read_rows, read_table
from .page import page

COUNTS = ["requests", "rounding", "structural", "another_rule"]


def build(run_dir: Path) -> Report:
    """The report of a run."""
    results = read_rows(run_dir)
    compared = read_table(run_dir, AGREEMENT, schema=AGREEMENT_SCHEMA, remedy=None)  # a row a job
    fixtures = read_table(run_dir, "comparisons.parquet", results, ["verifier"], remedy=None)  # and small fixture
    if compared.empty and fixtures.empty:
        raise ConfigError("RUN_DIR", run_dir, "no verifier was compared in it", "Use protocol=agreement.")
    shown = Table("table", table(compared), compared, left=("verifier", "twin")) if len(compared) else None
    data = {"fixtures": fixtures, "differences": read_table(run_dir, DIFFERENCES, remedy=None)}
    if compared.empty:
        data["table"] = compared
    by_job = fixtures.groupby(["job", "verifier"], as_index=False)[COUNTS].sum() if len(fixtures) else fixtures
    return page(
        run_dir,
        results,
        "verifier_agreement",
        {"table": shown},
        compared["rule"] if len(compared) else (),
        data=data,
        compared=compared,
        fixtures=by_job,
    )


def table(compared: pd.DataFrame) -> pd.DataFrame:
    """The rows as text."""
    return cells.shown(
        compared,
        lambda row: {
            "verifier": row["verifier"],
            "twin": row["twin"],
            "vocabulary": f"{row['vocabulary']:,}",
            "draws": f"{row['draws']:,}",
            "differences": str(row["differences"]),
            "rounding": number(row["rounding"], ".0f"),
            "wrong": number(row["wrong"], ".0f"),
            "largest error": number(row["largest_rounding"], ".1e"),
            "share": f"{row['share']:.1e} [{row['share_low']:.1e}, {row['share_high']:.1e}]",
        },
    )


if __name__ == "__main__":
    main("verifier_agreement", build)
