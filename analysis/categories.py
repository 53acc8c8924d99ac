"""What the reports of decoding sweeps say of the categories of a workload."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from specbench.metrics.intervals import columns
from specbench.metrics.results import CATEGORIES, read_jobs
from specbench.reports import Link, Section, Table
from specbench.reports.cells import interval, plain
from specbench.reports.text import section

NO_CATEGORY = "(none)"
NOTE = (
    """\
One line a run and category. Intervals of acceptance are by bootstrap over the prompts of the category; a conversation
is one prompt. Over few prompts they are too narrow: over 6, a nominal 95% holds the truth in fewer runs than that.
Tokens drafted: on average in a step, 0 where nothing was found. A speedup is that of the batches that hold no other
category, and missing if a batch held several. """,
    Link("categories.csv", "categories.csv"),
    " holds every column.",
)


def read_categories(run_dir: Path, results: pd.DataFrame, settings: Sequence[str]) -> pd.DataFrame:
    """The rows of categories.parquet, category by category and then in the order of ``results``.

    Args:
        run_dir: the sweep's folder.
        results: the rows of the run, with a column ``job``.
        settings: columns of ``results`` that each line gets as well.

    Returns:
        Those settings, job, and the columns of protocols/categories.py; empty if the workload has no categories.
    """
    found = read_jobs(run_dir, CATEGORIES)
    if found.empty:
        return found
    later = columns("drafted_per_step", None)  # which tables of earlier versions lack
    found = found.reindex(columns=list(dict.fromkeys([*found, *later])))
    rows = results[list(dict.fromkeys(["job", *settings]))].merge(
        found.replace({"category": {"": NO_CATEGORY}}), on="job"
    )
    places = {name: place for place, name in enumerate(rows["category"].unique())}
    return rows.sort_values("category", key=lambda names: names.map(places), kind="stable", ignore_index=True)


def by_category(rows: pd.DataFrame, settings: Sequence[str], setting: str) -> list[Section]:
    """The section on categories; none if the workload has none.

    Args:
        rows: of :func:`read_categories`.
        settings: the columns in which the runs differ.
        setting: what a caption says of the run.
    """
    if rows.empty:
        return []
    lines = [
        {
            "category": row["category"],
            **{name: plain(row[name]) for name in settings},
            "prompts": plain(row["prompts"]),
            "texts": plain(row["texts"]),
            "tokens drafted": interval(row, "drafted_per_step"),
            "acceptance rate": interval(row, "acceptance_rate"),
            "acceptance length": interval(row, "acceptance_length"),
            "speedup": interval(row, "speedup"),
        }
        for _, row in rows.iterrows()
    ]
    shown = pd.DataFrame(lines)
    caption = f"Acceptance and speedup by category of the workload. {setting}"
    return [section("By category", Table("categories", shown, rows, caption, note=NOTE, left=("category", *settings)))]
