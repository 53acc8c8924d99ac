"""What the reports of decoding sweeps say of the categories of a workload."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd

from specbench.metrics.intervals import columns
from specbench.metrics.results import CATEGORIES, read_jobs
from specbench.reports import Link, Section, Table
from specbench.reports.cells import few_units, interval, plain
from specbench.reports.text import section

NO_CATEGORY = "(none)"
MOST_COLUMNS = 8  # categories side by side
SIDE_NOTE = """\
Tokens a second over those of plain decoding, of the batches that hold no other category. All is the whole workload;
tokens a step are what Spec-Bench calls mean accepted tokens."""
NOTE = (
    """\
One line a run and category. Intervals of acceptance are by bootstrap over the prompts of the category; a conversation
is one prompt. Tokens drafted: on average in a step, 0 where nothing was found. A speedup is that of the batches that
hold no other category, and missing if a batch held several. """,
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


def by_category(rows: pd.DataFrame, results: pd.DataFrame, settings: Sequence[str], setting: str) -> list[Section]:
    """The section on categories; none if the workload has none.

    Args:
        rows: of :func:`read_categories`.
        results: the rows of the run, with a column ``job``.
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
    long = Table("categories", shown, rows, caption, note=NOTE, left=("category", *settings))
    few = few_units({"prompts of a category": int(rows["prompts"].min())})
    return [section("By category", *_side_by_side(rows, results, settings, setting), long, few)]


def _side_by_side(rows: pd.DataFrame, results: pd.DataFrame, settings: Sequence[str], setting: str) -> Iterator[Table]:
    """One line a run and a column a category, as Spec-Bench has its table; none for one category, or if batches held
    several."""
    names = list(rows["category"].unique())
    if not 1 < len(names) <= MOST_COLUMNS or rows["speedup"].isna().all():
        return
    lines = []
    for _, run in results.iterrows():
        cells = rows[rows["job"] == run["job"]].set_index("category").reindex(names)
        lines.append(
            {
                **{name: plain(run[name]) for name in settings},
                **{name: interval(row, "speedup") for name, row in cells.iterrows()},
                "all": interval(run, "speedup"),
                "tokens a step": interval(run, "acceptance_length"),
            }
        )
    caption = f"Speedup by category of the workload, and of all of it. {setting}"
    yield Table("speedups", pd.DataFrame(lines), caption=caption, note=SIDE_NOTE, left=tuple(settings))
