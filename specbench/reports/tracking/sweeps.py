"""A sweep's W&B run: the rows of all its jobs in one table, what became of each, and the report's figures."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from specbench.metrics.results import RESULTS, read_rows
from specbench.metrics.run_settings import distinguishing_columns, with_settings
from specbench.reports.tracking.jobs import JobRun
from specbench.reports.tracking.panels import MOST_ROWS, plain
from specbench.reports.tracking.settings import WandbWorkspace, tracking_errors

SWEEP = "sweep"  # its job type
MEASURED = ("speedup", "speedup_low", "speedup_high", "tokens_per_second", "acceptance_length", "acceptance_rate")


def log_sweep(
    workspace: WandbWorkspace,
    folder: Path,
    created: str,
    jobs: Sequence[Mapping[str, Any]],
    tags: Sequence[str],
    failed: bool,
    config: Mapping[str, Any],
) -> None:
    """Logs a sweep that has ended. A sweep that was gone on with replaces its run of before.

    Args:
        folder: the sweep's.
        created: when it was planned, which with the folder's name makes the run's own name.
        jobs: what became of each: the same keys in all.
        tags: that all its jobs have.
        failed: whether the command's exit status is not 0.
        config: of the run: what was asked for.

    Raises:
        TrackingError: and nothing else; it says what was not tracked.
    """
    if workspace.mode == "disabled":
        return
    number = hashlib.sha256(f"{created}/{folder.name}".encode()).hexdigest()[:12]
    run = JobRun(workspace, folder, f"{SWEEP} {folder.resolve().name}", SWEEP, [*tags, SWEEP], config, number)
    with tracking_errors():
        for before in folder.glob(f"wandb/*run-*-{number}"):
            shutil.rmtree(before)
        rows = read_rows(folder)
        tables = {"tables/jobs": plain(pa.Table.from_pylist(list(jobs)))}
        if rows is not None:
            tables["tables/results"] = plain(_scalars(rows.slice(0, MOST_ROWS)))
        states = [job["status"] for job in jobs]
        report = sorted((folder / "report" / "figures").glob("*.png"))
        counts = {"jobs": len(jobs), **{f"jobs_{state}": states.count(state) for state in dict.fromkeys(states)}}
        last = {
            "summary": {**counts, "best": {} if rows is None else best_row(rows)},
            "tables": tables,
            "images": {f"report/{path.stem}": str(path.resolve()) for path in report},
            "files": [
                str(path.resolve())
                for path in (folder / RESULTS, folder / "report/report.md", folder / "report/report.html")
                if path.is_file()
            ],
            "exit_code": int(failed),
        }
        run.send(last)


def best_row(rows: pa.Table) -> dict[str, Any]:
    """The row of the highest speedup: what tells it from the others, and what it measured; empty if none has one."""
    frame = with_settings(rows.to_pandas())
    timed = frame[frame["speedup"].notna()]
    if timed.empty:
        return {}
    row = timed.loc[timed["speedup"].idxmax(), list(dict.fromkeys(["job", *distinguishing_columns(frame), *MEASURED]))]
    return json.loads(row.to_json())


def _scalars(rows: pa.Table) -> pa.Table:
    """Without columns of lists, and without empty columns."""
    kept = [f.name for f in rows.schema if not pa.types.is_list(f.type) and rows[f.name].null_count < len(rows)]
    return rows.select(kept)
