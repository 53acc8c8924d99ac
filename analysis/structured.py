"""Do constrained texts keep to their structure, with drafts and without, and what do drafts accept?"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pandas as pd

from specbench.metrics.results import TEXTS
from specbench.metrics.run_settings import SAMPLER, distinguishing_columns, with_settings
from specbench.reports import Report, Table, cells
from specbench.reports.cells import NONE

from .command import main
from .folder import read_rows, read_table
from .page import page
from .parameters import STRUCTURE, structure

ENDED = "stop"
# What greedy texts depend on.
OF_TEXTS = ["sampler", "sampling", "pair", "target", "workload", "prompts", "max_new_tokens", "device", "dtype"]


def _parses(text: str, schema: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


JUDGES: dict[str, Callable[[str, str], bool]] = {
    "json": _parses,
    "regex": lambda text, pattern: re.fullmatch(pattern, text) is not None,
    "choice": lambda text, choices: text in json.loads(choices),
}


def build(run_dir: Path) -> Report:
    """The report of a sweep of constraints."""
    rows = read_rows(run_dir, "sampler", "acceptance_length")
    rows = rows.sort_values(["sampler", "temperature", "gamma"], ignore_index=True)
    counted = rows.join(counts(rows, read_table(run_dir, TEXTS, rows, [])))
    shown = {"table": Table("table", table(counted), counted, left=("sampler",))}
    return page(run_dir, counted, "structured", shown)


def counts(rows: pd.DataFrame, texts: pd.DataFrame) -> pd.DataFrame:
    """Of each row how many texts there are, ended, kept to the structure, and are those of gamma 0 if greedy."""
    by_job = {job: job_texts.set_index("prompt") for job, job_texts in texts.groupby("job")}
    alike, lines = rows.groupby([*OF_TEXTS, "temperature"], dropna=False).ngroup(), []
    for place, row in rows.iterrows():
        job_texts, structures = by_job[row["job"]], structure(row)
        ended = job_texts[job_texts["finished"] == ENDED]
        line = {"texts": len(job_texts), "ended": len(ended), "kept": None, "as_plain": None}
        (kind, what), *_ = structures.items() or [("", "")]
        if kind in JUDGES:
            line["kept"] = sum(JUDGES[kind](text, what) for text in ended["completion"])
        without = rows[(rows["gamma"] == 0) & (alike == alike[place])]
        if row["temperature"] == 0 and row["gamma"] > 0 and len(without):
            other = by_job[without["job"].iloc[0]]["completion"].reindex(job_texts.index)
            line["as_plain"] = int((job_texts["completion"] == other).sum())
        lines.append(line)
    return pd.DataFrame(lines, index=rows.index).astype({name: "Int64" for name in ("kept", "as_plain")})


def _settings(rows: pd.DataFrame) -> list[str]:
    """The columns by which rows of with_settings are told apart. A sampler's name stands for its one structure."""
    first, column = ["sampler", "temperature", "gamma"], f"{SAMPLER}{STRUCTURE}"
    one = column in rows and rows.groupby("sampler")[column].nunique().max() == 1
    return [*first, *distinguishing_columns(rows, *first, *([column] if one else []))]


def table(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows as text."""
    rows = with_settings(rows)
    counts = {
        "ended": _of(rows["ended"], rows["texts"]),
        "keep to it": _of(rows["kept"], rows["ended"]),
        "as plain": _of(rows["as_plain"], rows["texts"]),
    }
    drafted = rows[["overlap", "acceptance_length"]].where(rows["gamma"] > 0)
    columns = [*_settings(rows), *counts, "overlap", "acceptance rate", "acceptance length"]
    return cells.table(rows.assign(**counts, **drafted), columns)


def _of(counts: pd.Series, totals: pd.Series) -> list[str]:
    return [NONE if pd.isna(count) else f"{count} of {total}" for count, total in zip(counts, totals, strict=True)]


if __name__ == "__main__":
    main("structured", build)
