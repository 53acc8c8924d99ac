"""What an analysis reads of a sweep's folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pyarrow as pa

from specbench.core.errors import ConfigError
from specbench.metrics import results
from specbench.metrics.columns import Column
from specbench.reports.cells import Run
from specbench.rules.recorded import recall_rules
from specbench.runs.plan import LATEST, OUTPUTS, PLAN, find_sweep
from specbench.runs.status import SweepStatus

AGAIN = "Give a run of this experiment; if it is one, run it again, or read it with the version that wrote it."


def find_run(exp: str, run_dir: Path | None) -> Path:
    """The folder to report on; the newest run of the experiment under the current directory if none is given.

    Raises:
        ConfigError: there is no such folder.
    """
    folder = OUTPUTS / exp / LATEST if run_dir is None else run_dir
    if run_dir is None and not folder.is_dir() and any(OUTPUTS.glob(f"{exp}/*/{PLAN}")):
        return find_sweep(LATEST, exp)  # a file system without links, or a sweep of which nothing is done yet
    if not folder.is_dir():
        remedy = f"Run python -m specbench +exp={exp} first, or give the folder of a run."
        raise ConfigError("RUN_DIR", folder, "no such folder", remedy)
    return folder


def read_rows(run_dir: Path, *needed: Column) -> pd.DataFrame:
    """The rows of a run. Rules of a user's module that the run recorded are registered.

    Args:
        needed: columns without which there is nothing to report.

    Raises:
        ConfigError: a folder without any rows; if its sweep has a plan, with what became of the jobs. Rows of another
            schema, such as an older one, or of another experiment.
    """
    rows = results.read_rows(run_dir)
    recall_rules(run_dir)
    if rows is not None and len(rows):
        frame = rows.to_pandas()
        missing = [name for name in needed if frame[name].isna().all()]
        if missing:
            versions = ", ".join(dict.fromkeys(frame[Run.version].fillna("older than 0.1")))
            problem = (
                f"no {', '.join(missing)} in its rows, which are of {frame[Run.protocol].iloc[0]}, specbench {versions}"
            )
            raise ConfigError("RUN_DIR", run_dir, problem, AGAIN)
        return frame
    status = SweepStatus.of(run_dir)
    if status is not None:
        troubles = "; ".join(sentence for _, sentence in status.problems())
        state = "; ".join(filter(None, [status.sentence(), troubles])).removesuffix(".")  # which ConfigError sets
        raise ConfigError("RUN_DIR", run_dir, f"no rows to report on, {state}", status.remedy() or "Run it again.")
    if rows is not None:
        raise ConfigError("RUN_DIR", run_dir, "its results.parquet is empty", "Look for failed jobs; run it again.")
    remedy = "Give a folder of outputs/<exp>/<time>, after a run."
    raise ConfigError("RUN_DIR", run_dir, "no results.parquet in it", remedy)


def read_table(
    run_dir: Path,
    name: str,
    rows: pd.DataFrame | None = None,
    columns: Sequence[Column] = (),
    schema: pa.Schema | None = None,
    remedy: str | None = "Give the folder of a run of this experiment.",
) -> pd.DataFrame:
    """A table of all jobs, job by job.

    Args:
        name: of the file that each job wrote.
        rows: of the run; only lines of their jobs are returned. None returns those of all jobs.
        columns: of ``rows``, which each line gets from its job's row.
        schema: the columns that this version writes; None accepts any.
        remedy: what to do if no job left such a table; None returns one without lines.

    Raises:
        ConfigError: a damaged file; no job left such a table; columns are missing, as in a table of an older version.
    """
    table = results.read_jobs(run_dir, name)
    if table.empty:
        if remedy is not None:
            raise ConfigError("RUN_DIR", run_dir, f"no {name} in its jobs", remedy)
        return table
    if missing := [column for column in schema.names if column not in table] if schema is not None else []:
        problem = f"no {', '.join(missing)} in its {name}, which is of another version of specbench"
        raise ConfigError("RUN_DIR", run_dir, problem, AGAIN)
    return table if rows is None else table.merge(rows[[Run.job, *columns]], on=Run.job)
