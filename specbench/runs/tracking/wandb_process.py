"""W&B in a process of its own, started by process.py. Beside wandb_report.py the only importer of wandb.

Its argument is a temporary folder with a task: the name of a function, as "module:name", and its arguments. A line on
standard input says that what a run is of has ended, and the end of that input that the process that measured is gone.
Where it fails, standard output says why, and the status is 1.
"""

from __future__ import annotations

import html
import json
import os
import pkgutil
import select
import shutil
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specbench.core.errors import SpecbenchError, TrackingError
from specbench.core.machine.journal import AXES, PROGRESS
from specbench.runs.tracking.process import TASK

if TYPE_CHECKING:
    import pyarrow as pa

TICK = 2.0  # seconds between two looks at the curves
MOST_AT_ONCE = 1000  # points of a curve that are sent at a time
LOWEST = 19  # priority: what is measured beside it comes first


class Curves:
    """Numbers that a job writes down while it runs, a JSON object a line; see specbench/core/machine/journal.py."""

    def __init__(self, path: Path):
        self.path, self.place = path, 0

    def news(self) -> list[dict[str, Any]]:
        """What was written since the last time; many points are thinned evenly, and the last is kept."""
        try:
            with self.path.open("rb") as file:
                file.seek(self.place)
                new = file.read()
        except OSError:  # nothing was written
            return []
        whole = new[: new.rfind(b"\n") + 1]  # the last line may not be there yet
        self.place += len(whole)
        lines = whole.splitlines()
        stride = -(-len(lines) // MOST_AT_ONCE) or 1
        return [json.loads(line) for line in lines[::-1][::stride][::-1]]


def run(folder: str, init: dict[str, Any], live: bool, texts: int) -> None:
    """Logs the run of a job or a sweep, and waits until W&B has written or sent all of it.

    Args:
        live: whether the job still runs.
        texts: how many sample texts of a job are logged.

    Raises:
        TrackingError: W&B said nothing, but its log has an error: a full disk ends a run's file in the middle.
    """
    import wandb

    if live:
        os.nice(LOWEST)
    settings = wandb.Settings(silent=True, console="off", disable_git=True, disable_code=True, x_disable_stats=True)
    with wandb.init(dir=folder, **init, settings=settings) as logged:
        for metric, axis in AXES.items():
            logged.define_metric(f"live/{metric}", step_metric=f"live/{axis}")
        curves, ended = Curves(Path(folder, PROGRESS)), False
        while not ended:
            ended = bool(select.select([0], [], [], TICK)[0])
            for point in curves.news():
                logged.log({f"live/{name}": value for name, value in point.items()})
        exit_code = _end(logged, Path(folder), init["job_type"], texts)
        own_log = Path(logged.settings.log_internal)
        logged.finish(exit_code=exit_code)
    wandb.teardown()  # waits for its service, which closes the run's file
    for line in own_log.read_text(errors="replace").splitlines() if own_log.is_file() else ():
        if '"level":"ERROR"' in line:
            raise TrackingError(json.loads(line)["msg"])


def _end(logged: Any, folder: Path, kind: str, texts: int) -> int:
    """Logs what a folder holds; returns the run's exit code."""
    import numpy as np
    import wandb

    from specbench.runs.tracking import panels

    shown = panels.of_sweep(folder) if kind == panels.SWEEP else panels.of_job(folder, texts)
    if not set(shown.tags) <= set(logged.tags or ()):
        logged.tags = (*(logged.tags or ()), *shown.tags)
    logged.summary.update(shown.summary)
    media: dict[str, Any] = {name: wandb.Image(str(path)) for name, path in shown.images.items()}
    for name, counts in shown.histograms.items():  # each whole number in the middle of its bin
        media[name] = wandb.Histogram(np_histogram=(np.array(counts, float), np.arange(len(counts) + 1) - 0.5))
    for name, table in shown.tables.items():
        media[name] = table_of(table)
    if shown.error:
        media["error"] = wandb.Html(f"<pre>{html.escape(shown.error)}</pre>", inject=False)
    if media:
        logged.log(media)
    if shown.files:
        artifact = wandb.Artifact(f"results-{logged.id}", type="results")
        for path in shown.files:
            artifact.add_file(str(path), policy="immutable", skip_cache=True)  # no copies elsewhere
        logged.log_artifact(artifact)
    return shown.exit_code


def table_of(table: pa.Table) -> Any:
    """A table for W&B, which takes a list with null, such as rates of which one is unknown, for another type."""
    import wandb

    rows: list[Iterable[Any]] = [list(row.values()) for row in table.to_pylist()]
    has_unknown = any(isinstance(value, list) and None in value for row in rows for value in row)
    return wandb.Table(table.column_names, rows, allow_mixed_types=has_unknown)


def login() -> None:
    """Asks whether there is a key. Raises TrackingError if there is none."""
    import wandb

    if not wandb.login(prompt=False):
        raise TrackingError("no W&B key on this machine")


def main() -> None:
    """Does the task of the folder that the command line ends with."""
    scratch = sys.argv[-1]
    task, argv, arguments = json.loads(Path(scratch, TASK).read_text(encoding="utf-8"))
    with os.fdopen(os.dup(1), "w", errors="replace") as out:  # W&B's service, which may live longer, inherits no copy
        os.dup2(2, 1)
        sys.argv = argv  # W&B notes a run's command
        tempfile.tempdir = scratch  # before wandb makes its folders
        try:
            pkgutil.resolve_name(task)(**arguments)
        except SpecbenchError as error:
            out.write(str(error))
        except (Exception, SystemExit) as error:
            out.write(f"{type(error).__name__}: {''.join(str(error).strip().splitlines()[:1])}")
        else:
            return
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    sys.exit(1)
