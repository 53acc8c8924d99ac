"""What W&B shows of a folder: a job's row, tables and figures; a sweep's rows, what became of its jobs, its report.

Keys of tables begin with ``tables/``, those of histograms with ``charts/``, and those of curves with ``live/``: W&B
makes a section of each.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from specbench.core.machine.files import wrap_library_errors
from specbench.metrics.results import RESULTS, TEXTS, read_rows
from specbench.metrics.run_settings import distinguishing_columns, with_settings
from specbench.runs.state import ERROR, OWN_FILES, JobState, Status, written_state
from specbench.runs.status import SweepStatus

SWEEP = "sweep"  # the job type of a sweep's run
MOST_ROWS = 1000  # of a table in W&B; the artifact has all of them
LONGEST_ERROR = 20_000  # characters of a traceback
# No tables of these: the row is the summary, and the others have a line a token or a time. All are in the artifact.
NOT_AS_TABLES = (RESULTS, "joint_cells.parquet", "trace.parquet", "latency_samples.parquet", "logprobs.parquet")
HISTOGRAMS = ("acceptance_histogram",)  # columns of results.parquet: counts from 0
MEASURED = ("speedup", "speedup_low", "speedup_high", "tokens_per_second", "acceptance_length", "acceptance_rate")


@dataclass(frozen=True, kw_only=True)
class Shown:
    """What a run shows, each by its key; further tags of the run, and the status that it ends with."""

    summary: dict[str, Any]
    tables: dict[str, pa.Table]
    images: dict[str, Path]
    files: list[Path]
    exit_code: int
    histograms: dict[str, list[int]] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    error: str = ""


def of_job(folder: Path, texts: int) -> Shown:
    """What a job has left, and what became of it, when its process has ended or is gone.

    Args:
        folder: the job's; whatever of its files is not there is left out.
        texts: how many sample texts.

    Raises:
        ConfigError: a damaged table.
    """
    state = written_state(folder) or JobState("", Status.STARTED)
    status, reason = state.status, state.reason
    if status is Status.STARTED:
        status, reason = Status.DIED, f"process {state.pid} on {state.host} is gone"
    outcome = {"status": str(status), "reason": reason, "verdict": state.verdict}
    tables = {path.name: _read(path, texts if path.name == TEXTS else MOST_ROWS) for path in folder.glob("*.parquet")}
    (row,) = tables[RESULTS].to_pylist() if RESULTS in tables else ({},)
    named = {
        name: TEXTS.partition(".")[0] if name == TEXTS else f"tables/{name.removesuffix('.parquet')}" for name in tables
    }
    error = folder / ERROR
    done = status is Status.DONE
    results = [path for path in sorted(folder.iterdir()) if path.is_file() and path.name[0] != "."]
    return Shown(
        summary={key: value for key, value in {**row, **outcome}.items() if isinstance(value, int | float | str)},
        tables={
            named[name]: tables[name] for name in sorted(tables) if name not in NOT_AS_TABLES and len(tables[name])
        },
        images={path.stem: path for path in sorted(folder.glob("*.png"))},
        files=[path for path in results if path.suffix != ".png" and path.name not in OWN_FILES],
        exit_code=int(not done),
        histograms={f"charts/{name}": row[name] for name in HISTOGRAMS if row.get(name)},
        tags=() if done else (str(status),),
        error=error.read_text(encoding="utf-8", errors="replace")[-LONGEST_ERROR:] if error.is_file() else "",
    )


def of_sweep(folder: Path) -> Shown:
    """The rows of a sweep's jobs in one table, what became of each, the row of the highest speedup, and its report.

    Raises:
        ConfigError: damaged rows.
    """
    status = SweepStatus.of(folder)
    assert status is not None
    jobs, rows = pa.Table.from_pylist(job_lines(status)), read_rows(folder)
    states = jobs["status"].to_pylist()
    counts = {"jobs": len(states), **{f"jobs_{state}": states.count(state) for state in dict.fromkeys(states)}}
    report = folder / "report"
    files = [folder / RESULTS, report / "report.md", report / "report.html"]
    return Shown(
        summary={**counts, "best": {} if rows is None else best_row(with_settings(rows.to_pandas()))},
        tables={
            "tables/jobs": jobs,
            **({} if rows is None else {"tables/results": _scalars(rows.slice(0, MOST_ROWS))}),
        },
        images={f"report/{path.stem}": path for path in sorted((report / "figures").glob("*.png"))},
        files=[path for path in files if path.is_file()],
        exit_code=status.exit_status,
    )


def job_lines(status: SweepStatus) -> list[dict[str, Any]]:
    """What became of each job of a sweep."""
    names = ("reason", "verdict", "attempt", "started", "ended")
    return [
        {
            "job": job.number,
            "label": job.label,
            "status": str(state.status),
            **{name: getattr(state, name) for name in names},
        }
        for job, state in zip(status.plan.jobs, status.states, strict=True)
    ]


def best_row(frame: pd.DataFrame) -> dict[str, Any]:
    """The row of the highest speedup: what tells it from the others, and what it measured; empty if none has one."""
    timed = frame[frame["speedup"].notna()]
    if timed.empty:
        return {}
    row = timed.loc[timed["speedup"].idxmax(), list(dict.fromkeys(["job", *distinguishing_columns(frame), *MEASURED]))]
    return json.loads(row.to_json())


def _scalars(rows: pa.Table) -> pa.Table:
    """Without columns of lists, and without empty columns."""
    kept = [f.name for f in rows.schema if not pa.types.is_list(f.type) and rows[f.name].null_count < len(rows)]
    return rows.select(kept)


def _read(path: Path, most: int) -> pa.Table:
    """The first rows of a table, however long it is. Raises ConfigError, which names a damaged file."""
    with wrap_library_errors("RUN_DIR", path, "damaged", "Run the job again."):
        file = pq.ParquetFile(path)
        batch = next(file.iter_batches(batch_size=most), None) if most else None
        return file.schema_arrow.empty_table() if batch is None else pa.Table.from_batches([batch])
