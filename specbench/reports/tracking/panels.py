"""What W&B shows of a job, from the files in its folder: its row, tables, figures, and a column as a histogram.

Keys of tables begin with ``tables/``, those of histograms with ``charts/``, and those of curves with ``live/``: W&B
makes a section of each.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from specbench.core.machine.files import wrap_library_errors
from specbench.metrics.results import RESULTS, TEXTS

MOST_ROWS = 1000  # of a table in W&B; the artifact has all of them
OWN_FILES = (
    "job.json",
    "identity.json",
    "job.lock",
    "config.yaml",
    "environment.json",
    "progress.jsonl",
    "error.txt",
    "report.wandb.json",
)
# No tables of these: the row is the summary, texts have a table of their own length, and the others a line a token or a
# time. All are in the artifact.
NOT_AS_TABLES = (RESULTS, TEXTS, "joint_cells.parquet", "trace.parquet", "latency_samples.parquet", "logprobs.parquet")
HISTOGRAMS = ("acceptance_histogram",)  # columns of results.parquet: counts from 0


def panels(folder: Path, texts: int) -> dict[str, Any]:
    """What a run of W&B's gets of a job, as wandb_process.py takes it.

    Args:
        folder: the job's; whatever of its files is not there is left out.
        texts: how many sample texts.

    Returns:
        summary, images, histograms, tables and files, each by its key.

    Raises:
        ConfigError: a damaged table.
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
        "files": [str(path) for path in sorted(folder.iterdir()) if _is_result(path)],
    }


def counted(counts: list[int]) -> dict[str, list[float]]:
    """A histogram of whole numbers from 0, each in the middle of its bin."""
    return {"counts": list(map(float, counts)), "edges": [place - 0.5 for place in range(len(counts) + 1)]}


def plain(table: pa.Table) -> dict[str, Any]:
    """A table's columns and its rows as lists, as W&B's tables take them."""
    return {"columns": table.column_names, "data": [list(row.values()) for row in table.to_pylist()]}


def _read(path: Path, most: int) -> pa.Table:
    """The first rows of a table, however long it is. Raises ConfigError, which names a damaged file."""
    with wrap_library_errors("RUN_DIR", path, "damaged", "Run the job again."):
        file = pq.ParquetFile(path)
        batch = next(file.iter_batches(batch_size=most), None) if most else None
        return file.schema_arrow.empty_table() if batch is None else pa.Table.from_batches([batch])


def _is_result(path: Path) -> bool:
    return path.is_file() and path.name[0] != "." and path.suffix != ".png" and path.name not in OWN_FILES
