"""On what share of draws does a verifier differ from its rule's plain twin, and is every difference rounding?"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from specbench.benchmark.tables import AGREEMENT, AGREEMENT_SCHEMA, DIFFERENCES, AgreementRow
from specbench.metrics.columns import typed
from specbench.reports import Report, Table
from specbench.reports.cells import number

from .command import main
from .folder import read_rows, read_table
from .page import page


def build(run_dir: Path) -> Report:
    """The report of a run."""
    results = read_rows(run_dir)
    compared = read_table(run_dir, AGREEMENT, schema=AGREEMENT_SCHEMA, remedy="Use protocol=agreement.")  # a row a job
    rows = typed(compared, AgreementRow)
    return page(
        run_dir,
        results,
        "verifier_agreement",
        {"table": Table("table", table(rows), compared, left=("verifier", "twin"))},
        [row.rule for row in rows],
        data={"differences": read_table(run_dir, DIFFERENCES, remedy=None)},
        compared=rows,
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
