"""Weights & Biases, offline unless asked: what a job gives it, and what becomes of errors.

W&B runs in a process of its own (wandb_process.py). Its settings, signal handlers and threads never touch the process
that measures, or a user's own; it may hang or crash; and while the next job is timed nothing of it runs.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specbench.errors import ConfigError, TrackingError
from specbench.protocols import Outcome
from specbench.results import TEXT_SCHEMA, TEXTS

MODES = ("offline", "online", "disabled")
LONGEST_NAME = 128  # characters of a project, an entity or a run, by W&B
LIMITS = {"offline": 300, "online": 900}  # seconds for one job; W&B itself would wait for a lost server for ever
LONG_WAIT = 30.0  # seconds; W&B waits 90 for a server that does not answer, and fails at once for most other reasons
PROCESS = Path(__file__).with_name("wandb_process.py")
_waited: dict[str, str] = {}  # by group: why its runs are kept offline, after one waited for W&B's server in vain


def check_settings(mode: str, project: str, entity: str | None = None) -> None:
    """What W&B would refuse only after a run, or take and then lose: mode, names, online without a key.

    Raises:
        ConfigError: names the key, the value and what to write instead.
    """
    if mode not in MODES:
        raise ConfigError("tracking.mode", mode, "not a mode", f"Use {', '.join(MODES)}.")
    for key, name in (("project", project), ("entity", entity)):
        if name is not None and (problem := _problem(name)):
            # ascii: a console can print neither control characters nor half a surrogate pair
            shown = name if name.isprintable() else ascii(name)
            raise ConfigError(f"tracking.{key}", shown, problem, "Use another name, such as specbench.")
    if mode == "online" and not os.environ.get("WANDB_API_KEY") and (problem := _no_key()):
        remedy = "Set WANDB_API_KEY or run `wandb login`, or use offline."
        raise ConfigError("tracking.mode", mode, problem, remedy)


def _problem(name: str) -> str | None:
    """What is wrong with a project's or an entity's name, which W&B makes part of addresses and paths."""
    if not name.strip():
        return "an empty name"
    if name.strip() in (".", ".."):
        return "a folder, not a name"
    if len(name) > LONGEST_NAME:
        return f"W&B takes at most {LONGEST_NAME} characters, not {len(name)}"
    if set(name) & set("/\\#?%:"):
        return "W&B refuses / \\ # ? % : in names"
    if not name.isprintable():  # surrogates and control characters among them
        return "characters that cannot be printed"
    return None


@functools.cache
def _no_key() -> str | None:
    """Why W&B cannot be used online, or None; asked once, since it takes a second."""
    try:
        with tempfile.TemporaryDirectory() as scratch:
            _start({"task": "login"}, Path(scratch), os.environ, LIMITS["offline"])
    except TrackingError as error:
        return str(error)
    return None


def log_run(
    mode: str,
    *,
    project: str,
    entity: str | None,
    group: str,
    name: str,
    folder: Path,
    config: Mapping[str, Any],
    row: Mapping[str, Any],
    outcome: Outcome,
    texts: int,
) -> None:
    """Logs one finished job: its row as summary, figures, sample texts as a table, its result files as an artifact.

    Offline, all that W&B writes stays in ``folder/wandb``, no host is looked up, and ``wandb sync`` finds all it needs,
    as long as the folder is not moved. A run that could not be sent is left there as an offline run; if it waited for
    W&B's server in vain, the later runs of its group in this process do not wait again.

    Args:
        group: the sweep, whose jobs W&B then shows together.
        folder: the job's folder, whose PNG files are logged as images, parquet files and documents as an artifact.

    Raises:
        TrackingError: and nothing else, whatever failed; it says what was not tracked. The job's files are untouched.
    """
    if mode == "disabled":
        return
    try:
        table: list[list[Any]] = []
        if texts and TEXTS in outcome.tables:
            first: Any = itertools.islice(outcome.tables[TEXTS].rows, texts)
            table = [[text[column] for column in TEXT_SCHEMA.names] for text in first]
        folder = folder.resolve()
        job = {
            "task": "log",
            "argv": sys.argv,
            "init": {
                "project": project,
                "entity": entity,
                "group": group,
                "name": name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…",
                "job_type": str(row["verifier"] or row["protocol"]),
                "dir": str(folder),
                "config": dict(config),
            },
            "summary": {key: value for key, value in row.items() if isinstance(value, int | float | str)},
            "images": {path.stem: str(path) for path in sorted(folder.glob("*.png"))},
            "columns": TEXT_SCHEMA.names,
            "texts": table,
            "files": [
                str(path) for path in [*sorted(folder.glob("*.parquet")), *map(folder.joinpath, outcome.documents)]
            ],
        }
        began = time.monotonic()
        try:
            if mode == "online" and group in _waited:
                raise TrackingError(_waited[group])
            _log(job, mode, folder)
        except TrackingError as error:
            if mode == "offline":
                raise
            if time.monotonic() - began >= LONG_WAIT:
                _waited[group] = f"an earlier run of this sweep could not be sent: {error}"
            _log(job, "offline", folder)
            raise TrackingError(f"{error}; kept offline, `wandb sync {folder}/wandb/offline-run-*` sends it") from error
    except TrackingError:
        raise
    except Exception as error:  # full disks, texts that are no text: nothing of this may cost a finished job
        raise TrackingError(f"{type(error).__name__}: {error}") from error


def _log(job: dict[str, Any], mode: str, folder: Path) -> None:
    with tempfile.TemporaryDirectory(prefix=".wandb-", dir=folder, ignore_cleanup_errors=True) as scratch:
        given = {**job, "init": {**job["init"], "mode": mode}}
        _start(given, Path(scratch), _environment(mode, folder / "wandb"), LIMITS[mode])


def _environment(mode: str, place: Path) -> dict[str, str]:
    """Of W&B's process. Online, a user's own settings hold; offline, no setting moves files or reaches the network."""
    if mode == "online":
        return {"WANDB_DATA_DIR": str(place), **os.environ}
    return {
        **os.environ,
        "WANDB_ERROR_REPORTING": "false",  # it looks up a host even offline
        "WANDB_DATA_DIR": str(place),  # copies of tables, which `wandb sync` sends
        "WANDB_CACHE_DIR": str(place / "cache"),  # logs
        "WANDB_CONFIG_DIR": str(place / "config"),
    }


def _start(job: Mapping[str, Any], scratch: Path, environment: Mapping[str, str], limit: int) -> None:
    """Runs W&B's process to its end.

    Args:
        scratch: a folder for its temporary files.

    Raises:
        TrackingError: with what it said, or with its status.
    """
    given = json.dumps({**job, "scratch": str(scratch)}, ensure_ascii=False, default=str)
    try:
        ended = subprocess.run(
            [sys.executable, "-P", str(PROCESS)],  # -P: the modules beside it have the names of standard ones
            input=given.encode("utf-8", "replace"),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            timeout=limit,
            start_new_session=True,  # Ctrl-C is for the sweep
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise TrackingError(f"W&B did not end within {limit} s") from error
    if ended.returncode:
        reason = ended.stdout.decode(errors="replace").strip()
        raise TrackingError(reason or f"W&B's process ended with status {ended.returncode}")
