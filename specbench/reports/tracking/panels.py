"""What W&B shows of a job, from the files in its folder: which column becomes a histogram, which table which chart.

Charts are of the presets that W&B's server has, so that they need no network to be made, and a project that was synced
later draws the same ones. Their keys begin with ``charts/``, those of tables with ``tables/``, and those of curves with
``live/``: W&B makes a section of each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from specbench.metrics.results import CATEGORIES, EMPIRICAL, RESULTS, TEXTS

Rows = list[dict[str, Any]]
MOST_ROWS = 1000  # of a table or a chart, in W&B; the artifact has all of them
OWN_FILES = (
    "job.json",
    "job.lock",
    "config.yaml",
    "environment.json",
    "progress.jsonl",
    "error.txt",
    "report.wandb.json",
)
# No tables of these: they are shown otherwise, or have a line a token or a time. All are in the artifact.
NOT_AS_TABLES = (
    *(RESULTS, TEXTS, EMPIRICAL, "rounds.parquet", "joint_cells.parquet"),
    *("trace.parquet", "latency_samples.parquet", "logprobs.parquet"),
)


@dataclass(frozen=True)
class Chart:
    """A custom chart of W&B's.

    Attributes:
        name: of its key.
        title: what it shows.
        preset: bar (label, value), line (x, y, stroke) or scatter (x, y).
        fields: the preset's, each with the column that it is drawn from.
        file: the table in the job's folder.
        made: the chart's rows from those of the table; None leaves them as they are.
    """

    name: str
    title: str
    preset: Literal["bar", "line", "scatter"]
    fields: Mapping[str, str]
    file: str
    made: Callable[[Rows], Rows] | None = None

    @property
    def key(self) -> str:
        """As W&B knows it."""
        return f"charts/{self.name}"

    @property
    def drawing(self) -> dict[str, Any]:
        """How W&B draws it: its server's preset, the columns for that, and the title."""
        return {"preset": f"wandb/{self.preset}/v0", "fields": dict(self.fields), "title": self.title}


def _by_position(rows: Rows) -> Rows:
    return [
        {"position": place, "share accepted": rate, "of": words}
        for column, words in (
            ("conditional_rates", "where all before it were accepted"),
            ("joint_rates", "all drafted"),
        )
        for row in rows
        for place, rate in enumerate(row[column] or (), start=1)
        if rate is not None
    ]


def _speeds(rows: Rows) -> Rows:
    totals: dict[tuple[int, str], list[float]] = {}
    for row in rows:
        total = totals.setdefault((row["round"], row["way"]), [0.0, 0.0])
        total[0] += row["tokens"]
        total[1] += row["seconds"]
    return [
        {"round": number, "way": way, "tokens per second": tokens / seconds}
        for (number, way), (tokens, seconds) in totals.items()
        if seconds
    ]


def _timed(*names: str) -> Callable[[Rows], Rows]:
    """A bar a row that was timed, named by its values of the columns that tell it from the others."""
    return lambda rows: [
        {"case": " ".join(str(row[name]) for name in names), "median_us": row["median_us"]}
        for row in rows
        if row["median_us"] is not None
    ]


def _steps(rows: Rows) -> Rows:
    return [{**row, "batch": f"batch {row['batch']}", "step_ms": 1000 * row["step"]} for row in rows]


def _bounds(rows: Rows) -> Rows:
    """A bar for each prompt, each position, and all together."""
    known = [row for row in rows if row["bound"] is not None]
    return [
        {"part": f"position {row['position']}" if row["position"] else row["prompt"], "at most": row["bound"]}
        for row in known
    ]


def _sets(rows: Rows) -> Rows:
    return [{**row, "of": f"{row['which']} ({row['mode']})"} for row in rows]


CHARTS = (
    Chart(
        "position_rates", "Share accepted by position in the block", "line",
        {"x": "position", "y": "share accepted", "stroke": "of"}, RESULTS, _by_position,
    ),
    Chart(
        "empirical_against_target", "Share drawn against the target's probability, a point a token", "scatter",
        {"x": "prob", "y": "share"}, EMPIRICAL,
        lambda rows: [{**row, "share": row["count"] / row["draws"]} for row in rows],
    ),
    Chart(
        "categories", "Tokens a step by category of the workload", "bar",
        {"label": "category", "value": "acceptance_length"}, CATEGORIES,
    ),
    Chart(
        "rounds", "Tokens a second, round by round", "line",
        {"x": "round", "y": "tokens per second", "stroke": "way"}, "rounds.parquet", _speeds,
    ),
    Chart(
        "judge_bias", "Bias a token of the engine, at most, by prompt and position", "bar",
        {"label": "part", "value": "at most"}, "judge_bias.parquet", _bounds,
    ),
    Chart(
        "judge_shares", "Difference in the share of tokens, at most, by set", "bar",
        {"label": "of", "value": "bound"}, "judge_checkpoint.parquet", _sets,
    ),
    Chart(
        "joint_cells", "Share of whole steps against the target's probability, on small fixtures", "scatter",
        {"x": "prob", "y": "share"}, "joint_cells.parquet",
    ),
    Chart(
        "replay", "Tokens a step by draft length", "line",
        {"x": "gamma", "y": "acceptance_length", "stroke": "rule"}, "replay.parquet",
    ),
    Chart(
        "latency", "Median microseconds of a verification", "bar",
        {"label": "case", "value": "median_us"}, "latency.parquet",
        _timed("variant", "batch_size", "vocabulary", "gamma"),
    ),
    Chart(
        "agreement", "Verifications whose tokens differ, by size of the vocabulary", "scatter",
        {"x": "vocabulary", "y": "differences"}, "agreement.parquet",
    ),
    Chart(
        "step_cost", "Milliseconds a step by draft length", "line",
        {"x": "gamma", "y": "step_ms", "stroke": "batch"}, "cost.parquet", _steps,
    ),
    Chart(
        "predicted", "Predicted speedup by draft length", "line",
        {"x": "gamma", "y": "speedup", "stroke": "batch"}, "predicted.parquet",
    ),
)  # fmt: skip
HISTOGRAMS = {"acceptance_histogram": "drafted tokens accepted by a step"}  # columns of results.parquet: counts from 0


def panels(folder: Path, texts: int) -> dict[str, Any]:
    """What a run of W&B's gets of a job, as wandb_process.py takes it.

    Args:
        folder: the job's; whatever of its files is not there is left out.
        texts: how many sample texts.

    Returns:
        summary, images, histograms, tables, charts and files, each by its key.
    """
    tables = {path.name: _read(path, texts if path.name == TEXTS else MOST_ROWS) for path in folder.glob("*.parquet")}
    (row,) = tables[RESULTS].to_pylist() if RESULTS in tables else ({},)
    shown = {f"tables/{name.removesuffix('.parquet')}": t for name, t in tables.items() if name not in NOT_AS_TABLES}
    sample_texts = {"texts": tables[TEXTS]} if TEXTS in tables else {}
    return {
        "summary": {key: value for key, value in row.items() if isinstance(value, int | float | str)},
        "images": {path.stem: str(path) for path in sorted(folder.glob("*.png"))},
        "histograms": {f"charts/{name}": counted(row[name]) for name in HISTOGRAMS if row.get(name)},
        "tables": {name: plain(table) for name, table in sorted((sample_texts | shown).items()) if len(table)},
        "charts": {chart.key: drawn for chart in CHARTS if chart.file in tables and (drawn := _drawn(chart, folder))},
        "files": [str(path) for path in sorted(folder.iterdir()) if _is_result(path)],
    }


def counted(counts: list[int]) -> dict[str, list[float]]:
    """A histogram of whole numbers from 0, each in the middle of its bin."""
    return {"counts": list(map(float, counts)), "edges": [place - 0.5 for place in range(len(counts) + 1)]}


def plain(table: pa.Table) -> dict[str, Any]:
    """A table's columns and its rows as lists, as W&B's tables take them."""
    return {"columns": table.column_names, "data": [list(row.values()) for row in table.to_pylist()]}


def _drawn(chart: Chart, folder: Path) -> dict[str, Any] | None:
    rows = pq.read_table(folder / chart.file).to_pylist()
    rows = chart.made(rows) if chart.made else rows
    wanted = list(chart.fields.values())
    named = [column for column in ("token", "prefix", "fixture", "sequence") if rows and column in rows[0]]
    columns = list(dict.fromkeys([*wanted, *named]))
    stride = -(-len(rows) // MOST_ROWS)
    data = [[row[column] for column in columns] for row in rows[:: stride or 1]]
    if not data:
        return None
    return {"columns": columns, "data": data, **chart.drawing}


def _read(path: Path, most: int) -> pa.Table:
    """The first rows of a table, however long it is."""
    file = pq.ParquetFile(path)
    batch = next(file.iter_batches(batch_size=most), None) if most else None
    return file.schema_arrow.empty_table() if batch is None else pa.Table.from_batches([batch])


def _is_result(path: Path) -> bool:
    return path.is_file() and path.name[0] != "." and path.suffix != ".png" and path.name not in OWN_FILES
