"""Small files that are whole or absent, even if their writer is killed."""

import errno
import json
import os
import socket
import uuid
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from specbench.core.errors import SpecbenchError

# For jobs, which write the most: a sweep of which nothing can be written goes on later.
OF_JOBS = "Free space there, make it writable or put it back; what is missing then runs with resume=FOLDER."

FULL = tuple(map(os.strerror, (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)))  # reasons of a disk that has no space


class WriteError(SpecbenchError):
    """A file that could not be written: a full disk, a folder that is read-only or has gone.

    Args:
        reason: of the system, such as "No space left on device".
    """

    def __init__(self, place: Path, reason: str, remedy: str = OF_JOBS):
        self.place, self.reason = place, reason
        super().__init__(f"cannot write to {place} ({reason}). {remedy}")


@contextmanager
def writing(place: Path, remedy: str = "") -> Generator[None]:
    """Makes the system's errors WriteErrors that name the place.

    Args:
        remedy: of these errors, and of WriteErrors of the block; without one that of a job.
    """
    try:
        yield
    except OSError as error:
        raise WriteError(place, error.strerror or str(error), remedy or OF_JOBS) from error
    except WriteError as error:
        if not remedy:
            raise
        raise WriteError(error.place, error.reason, remedy) from error


@contextmanager
def beside(path: Path) -> Generator[Path]:
    """A name beside ``path`` to write to, which then takes the place of ``path`` in one step.

    The name is unique to this call: other processes, on other machines too, may write the same file at the same time,
    and the last one stands. A file that is there already is kept until the new one is whole.

    Raises:
        WriteError: something could not be written.
    """
    writer = f"{os.getpid()}@{socket.gethostname()}"
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.{writer}.tmp")
    with writing(path.parent):
        try:
            yield temporary
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


@contextmanager
def locked(file: Path, seconds: float = -1) -> Generator[None]:
    """Holds a lock that other processes wait for; the system releases it if this process dies, whatever kills it.

    Args:
        seconds: how long to wait for it; -1 is no limit.

    Raises:
        filelock.Timeout: another process had it all the while.
        WriteError: the file cannot be written.
    """
    lock = FileLock(file)
    try:
        lock.acquire(timeout=seconds)
    except Timeout:
        raise
    except OSError as error:
        raise WriteError(file.parent, error.strerror or str(error)) from error
    try:
        yield
    finally:
        lock.release()


def clear_temporaries(folder: Path) -> None:
    """Removes the files of ``beside`` under a folder whose processes, of this machine, were killed while they wrote.

    Raises:
        WriteError: something could not be removed.
    """
    with writing(folder):
        for file in folder.rglob(".*.tmp"):
            pid, _, host = file.name.removesuffix(".tmp").partition("@")
            number = pid.rpartition(".")[2]
            if host == socket.gethostname() and number.isdecimal() and not _lives(int(number)):
                file.unlink(missing_ok=True)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's
        return True
    return True


def write_text(path: Path, text: str) -> None:
    """Writes a text file in one step. Lone surrogates, which no encoding has, are written as ``\\udc80``."""
    with beside(path) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace")


def write_json(path: Path, content: Any) -> None:
    """Writes a JSON file in one step."""
    write_text(path, json.dumps(content, indent=1) + "\n")


def read_json(path: Path) -> Any:
    """What a JSON file holds; None if it is not there or is no JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
