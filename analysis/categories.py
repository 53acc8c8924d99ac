"""What the reports of decoding sweeps say of the categories of a workload."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from specbench.reports import Link, Section, Table
from specbench.reports.cells import interval, plain
from specbench.reports.text import section
from specbench.results import CATEGORIES, read_jobs

NOTE = (
    """\
One line a run and category. Intervals of acceptance are by bootstrap over the prompts of the category; a conversation
is one prompt. A speedup is that of the batches that hold no other category, and missing if a batch held several. """,
    Link("categories.csv", "categories.csv"),
    " holds every column.",
)


def by_category(run_dir: Path, results: pd.DataFrame, settings: list[str], setting: str) -> list[Section]:
    """The section on categories; none if the workload has none.

    Args:
        results: the rows of the run, with a column ``job``.
        settings: the columns in which the rows differ.
        setting: what a caption says of the run.
    """
    found = read_jobs(run_dir, CATEGORIES)
    if found.empty:
        return []
    rows = results[["job", *settings]].merge(found, on="job")
    lines = [
        {
            "category": row["category"] or "(none)",
            **{name: plain(row[name]) for name in settings},
            "prompts": plain(row["prompts"]),
            "texts": plain(row["texts"]),
            "acceptance rate": interval(row, "acceptance_rate"),
            "acceptance length": interval(row, "acceptance_length"),
            "speedup": interval(row, "speedup"),
        }
        for _, row in rows.iterrows()
    ]
    shown = pd.DataFrame(lines)
    caption = f"Acceptance and speedup by category of the workload. {setting}"
    return [section("By category", Table("categories", shown, rows, caption, note=NOTE, left=("category", *settings)))]
