"""What became of one job, as its folder says: ``job.json``, and a lock that its process holds while it lives."""

from __future__ import annotations

import dataclasses
import os
import shutil
import socket
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path

from filelock import FileLock, Timeout

from specbench.core.errors import SpecbenchError
from specbench.core.machine.disk import WriteError, locked, read_json, write_json, writing
from specbench.core.machine.journal import PROGRESS, TOGETHER
from specbench.sources.contract import SAMPLED

STATE, LOCK = "job.json", "job.lock"
SETTINGS = "config.yaml"  # the job's configuration, with everything filled in
IDENTITY = "identity.json"  # of the plan: what the job's id is a digest of (identity.py)
ERROR, ENVIRONMENT = "error.txt", "environment.json"
OWN_FILES = (STATE, IDENTITY, LOCK, PROGRESS, ERROR, SETTINGS, ENVIRONMENT)  # of every job, whatever it measures
PATIENCE = 5.0  # seconds; to look whether a lock is held takes it for a moment


class Status(StrEnum):
    """Running and died are never written: they are a job that has started, and whose process lives or does not."""

    PLANNED = "planned"
    STARTED = "started"
    RUNNING = "running"
    DIED = "died"
    DONE = "done"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class JobState:
    """One job.

    Attributes:
        reason: why it failed or was skipped.
        verdict: why the command does not exit with 0 although all was measured, such as a verifier that is refuted.
        warnings: what went wrong beside the numbers: a figure, the tracking.
        attempt: 1 for the first; 0 before it.
        host, pid: of the process that has or had it.
        started, ended: UTC, ISO 8601.
    """

    id: str
    status: Status = Status.PLANNED
    reason: str | None = None
    verdict: str | None = None
    warnings: Sequence[str] = ()
    attempt: int = 0
    host: str | None = None
    pid: int | None = None
    started: str | None = None
    ended: str | None = None

    def begun(self) -> JobState:
        """The next attempt, in this process."""
        return JobState(
            self.id,
            Status.STARTED,
            attempt=self.attempt + 1,
            host=socket.gethostname(),
            pid=os.getpid(),
            started=_now(),
        )

    def ending(self, status: Status, reason: str | None = None, **more: object) -> JobState:
        return dataclasses.replace(self, status=status, reason=reason, ended=_now(), **more)


class JobRunning(SpecbenchError):
    """Another process has the job."""


def write_state(folder: Path, state: JobState) -> None:
    """Raises WriteError."""
    write_json(folder / STATE, dataclasses.asdict(state))


def write_ending(folder: Path, state: JobState) -> None:
    """Writes how a failed attempt ended. If a full disk has no room for that, what the attempt left is removed first.

    The next attempt would remove it in any case, and without its end a job looks as if its process had been killed.

    Raises:
        WriteError: it cannot be written all the same.
    """
    try:
        write_state(folder, state)
    except WriteError:
        clear_attempt(folder)
        write_state(folder, state)


def written_state(folder: Path) -> JobState | None:
    """What the folder says; None if it says nothing of a job."""
    written = read_json(folder / STATE)
    try:
        return JobState(status=Status(written.pop("status")), **written)
    except (AttributeError, TypeError, KeyError, ValueError):
        return None


def read_state(folder: Path) -> JobState | None:
    """What the folder says, with running or died for a job that has started."""
    state = written_state(folder)
    if state is not None and state.status is Status.STARTED:
        return dataclasses.replace(state, status=Status.RUNNING if _is_locked(folder) else Status.DIED)
    return state


@contextmanager
def locked_job(folder: Path) -> Generator[None]:
    """Holds the lock of a job.

    Raises:
        JobRunning: another process holds it.
        WriteError: the folder cannot be written.
    """
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(folder / LOCK, PATIENCE))
        except Timeout:
            state = read_state(folder)
            who = f"process {state.pid} on {state.host}" if state else "another process"
            raise JobRunning(f"{who} runs it already") from None
        yield


def clear_attempt(folder: Path) -> None:
    """Removes what an earlier attempt left, so that nothing of it is mixed with the next one's. Raises WriteError.

    Texts of an engine under test and shared rounds stay: the next attempt takes them instead of making them again.
    """
    with writing(folder):
        for entry in folder.iterdir():
            if entry.name in (STATE, LOCK, IDENTITY, SAMPLED) or entry.stem == Path(TOGETHER).stem:
                continue
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()


def _is_locked(folder: Path) -> bool:
    if not (folder / LOCK).exists():
        return False
    try:
        with FileLock(folder / LOCK, timeout=0):
            return False
    except Timeout:
        return True
    except OSError:  # a folder that may only be read: its process is asked for on this machine, and trusted elsewhere
        state = read_json(folder / STATE) or {}
        return state.get("host") != socket.gethostname() or Path(f"/proc/{state.get('pid')}").exists()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
