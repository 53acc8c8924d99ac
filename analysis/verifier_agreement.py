"""On what share of draws does a verifier differ from its rule's plain twin, and is every difference rounding?"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from specbench.benchmark.tables import AGREEMENT, AGREEMENT_SCHEMA, DIFFERENCES, AgreementRow
from specbench.core.errors import ConfigError
from specbench.metrics.columns import Column, columns_of, typed
from specbench.metrics.exactness_rows import COMPARISONS, ComparisonRow
from specbench.reports import Report, Table
from specbench.reports.cells import Run, number

from .command import main
from .folder import read_rows, read_table
from .page import page

Comparison = columns_of(ComparisonRow)
COUNTS: list[Column] = [Comparison.requests, Comparison.rounding, Comparison.structural, Comparison.another_rule]


def build(run_dir: Path) -> Report:
    """The report of a run."""
    results = read_rows(run_dir)
    compared = read_table(run_dir, AGREEMENT, schema=AGREEMENT_SCHEMA, remedy=None)  # a row a job
    fixtures = read_table(run_dir, COMPARISONS, results, [Run.verifier], remedy=None)  # and small fixture
    if compared.empty and fixtures.empty:
        raise ConfigError("RUN_DIR", run_dir, "no verifier was compared in it", "Use protocol=agreement.")
    rows = typed(compared, AgreementRow)
    shown = Table("table", table(rows), compared, left=("verifier", "twin")) if rows else None
    data = {"fixtures": fixtures, "differences": read_table(run_dir, DIFFERENCES, remedy=None)}
    if compared.empty:
        data["table"] = compared
    by_job = fixtures.groupby([Run.job, Run.verifier], as_index=False)[COUNTS].sum() if len(fixtures) else fixtures
    return page(
        run_dir,
        results,
        "verifier_agreement",
        {"table": shown},
        [row.rule for row in rows],
        data=data,
        compared=rows,
        fixtures=by_job,
    )


def table(rows: Iterable[AgreementRow]) -> pd.DataFrame:
    """The rows as text."""
    return pd.DataFrame(
        {
            "verifier": row.verifier,
            "twin": row.twin,
            "vocabulary": f"{row.vocabulary:,}",
            "draws": f"{row.draws:,}",
            "differences": str(row.differences),
            "rounding": number(row.rounding, ".0f"),
            "wrong": number(row.wrong, ".0f"),
            "largest error": number(row.largest_rounding, ".1e"),
            "share": f"{row.share:.1e} [{row.share_low:.1e}, {row.share_high:.1e}]",
        }
        for row in rows
    )


if __name__ == "__main__":
    main("verifier_agreement", build)
