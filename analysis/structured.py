"""Do constrained texts keep to their structure, with drafts and without, and what do drafts accept?"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from specbench.metrics.columns import Column, columns_of, frame_of, typed
from specbench.metrics.results import TEXTS, TextRow
from specbench.metrics.run_row import RunRow
from specbench.metrics.run_settings import SAMPLER, distinguishing_columns, with_settings
from specbench.reports import Report, Table, cells
from specbench.reports.cells import NONE, Run

from .command import main
from .folder import read_rows, read_table
from .page import page
from .parameters import STRUCTURE, structure

ENDED = "stop"


@dataclass(frozen=True)
class StructureRow:
    """How many texts a run has."""

    texts: int
    ended: int  # before max_new_tokens
    kept: int | None  # of these, to their structure; None if that cannot be judged
    as_plain: int | None  # that are those of gamma 0; None unless both are greedy


Counts, Text = columns_of(StructureRow), columns_of(TextRow)
# What greedy texts depend on.
OF_TEXTS: list[Column] = [Run.sampler, Run.sampling, Run.pair, Run.target, Run.workload, Run.prompts]
OF_TEXTS += [Run.max_new_tokens, Run.device, Run.dtype]


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
    rows = read_rows(run_dir, Run.sampler, Run.acceptance_length)
    rows = rows.sort_values([Run.sampler, Run.temperature, Run.gamma], ignore_index=True)
    counted = rows.join(counts(rows, read_table(run_dir, TEXTS, rows, [])))
    shown = {"table": Table("table", table(counted), counted, left=("sampler",))}
    return page(run_dir, counted, "structured", shown)


def counts(rows: pd.DataFrame, texts: pd.DataFrame) -> pd.DataFrame:
    """StructureRow of each row."""
    by_job = {job: job_texts.set_index(Text.prompt) for job, job_texts in texts.groupby(Run.job)}
    alike, lines = rows.groupby([*OF_TEXTS, Run.temperature], dropna=False).ngroup(), []
    for place, run in zip(rows.index, typed(rows, RunRow), strict=True):
        job_texts, kept, as_plain = by_job[run.job], None, None
        ended = job_texts[job_texts[Text.finished] == ENDED]
        (kind, what), *_ = structure(run).items() or [("", "")]
        if kind in JUDGES:
            kept = sum(JUDGES[kind](text, what) for text in ended[Text.completion])
        without = rows[(rows[Run.gamma] == 0) & (alike == alike[place])]
        if run.temperature == 0 and run.gamma and len(without):
            other = by_job[without[Run.job].iloc[0]][Text.completion].reindex(job_texts.index)
            as_plain = int((job_texts[Text.completion] == other).sum())
        lines.append(StructureRow(len(job_texts), len(ended), kept, as_plain))
    return frame_of(lines, StructureRow).set_index(rows.index).astype({Counts.kept: "Int64", Counts.as_plain: "Int64"})


def _settings(rows: pd.DataFrame) -> list[Column]:
    """The columns by which rows of with_settings are told apart. A sampler's name stands for its one structure."""
    first, column = [Run.sampler, Run.temperature, Run.gamma], f"{SAMPLER}{STRUCTURE}"
    one = column in rows and rows.groupby(Run.sampler)[column].nunique().max() == 1
    return [*first, *distinguishing_columns(rows, *first, *([column] if one else []))]


def table(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows as text."""
    rows = with_settings(rows)
    counts = {
        "ended": _of(rows[Counts.ended], rows[Counts.texts]),
        "keep to it": _of(rows[Counts.kept], rows[Counts.ended]),
        "as plain": _of(rows[Counts.as_plain], rows[Counts.texts]),
    }
    drafted = rows[[Run.overlap, Run.acceptance_length]].where(rows[Run.gamma] > 0)
    columns = [*_settings(rows), *counts, "overlap", "acceptance rate", "acceptance length"]
    return cells.table(rows.assign(**counts, **drafted), columns)


def _of(counts: pd.Series, totals: pd.Series) -> list[str]:
    return [NONE if pd.isna(count) else f"{count} of {total}" for count, total in zip(counts, totals, strict=True)]


if __name__ == "__main__":
    main("structured", build)
