"""Starts W&B's process (wandb_process.py), and says what became of it."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from specbench.core.errors import TrackingError

LIMITS = {"offline": 300, "online": 900}  # seconds for one task; W&B itself would wait for a lost server for ever
LATER = 60  # seconds for further tasks, once W&B has not ended in time: its process may be stopped
LONGEST_NAME = 128  # characters of a project, an entity, a group or a run, by W&B
END = b"\n"  # a process that was forked from this one may hold the pipe open
TASK = "task.json"  # in the process's temporary folder
_TASKS = "specbench.runs.tracking.wandb_"
LOG_RUN, LOGIN, WRITE_REPORT = f"{_TASKS}process:run", f"{_TASKS}process:login", f"{_TASKS}report:write"
# It runs this specbench, wherever that lies; -P: modules of the current folder are not Python's.
_CODE = """import sys
sys.path[:0] = {sys.argv[1]} - {*sys.path}
from specbench.runs.tracking.wandb_process import main
main()"""
_COMMAND = ("-P", "-c", _CODE, str(Path(__file__).parents[3]))
_stalled: list[int | float] = []  # the limits that W&B has overrun in this process
_left: list[subprocess.Popen[bytes]] = []  # they end by themselves and are not waited for


class WandbProcess:
    """W&B's process for one task, which may last until the process is asked to end.

    Args:
        task: the name of a function of W&B's process, and its arguments.
        place: a folder in which its temporary files may lie.
        mode: of W&B. Online, a user's own settings hold; offline, no setting moves files or reaches the network.

    Raises:
        TrackingError: it cannot be started.
    """

    def __init__(self, task: str, place: Path, mode: str, **arguments: Any):
        self.mode, scratch = mode, ""
        try:
            scratch = self.scratch = tempfile.mkdtemp(prefix=".wandb-", dir=place)
            text = json.dumps([task, sys.argv, arguments], ensure_ascii=False, default=str)
            Path(scratch, TASK).write_bytes(text.encode("utf-8", "replace"))
            self.process = subprocess.Popen(
                [sys.executable, *_COMMAND, scratch],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=_environment(mode, place / "wandb"),
                start_new_session=True,  # Ctrl-C is for the sweep
            )
        except Exception as error:  # no room, too many processes
            shutil.rmtree(scratch, ignore_errors=True)
            raise TrackingError(f"{type(error).__name__}: {error}") from error

    def end(self) -> None:
        """Asks it to end, and waits until all is done.

        Raises:
            TrackingError: with what it said, or with its status.
        """
        limit = min(LIMITS[self.mode], LATER) if _stalled else LIMITS[self.mode]
        try:
            reply = self.process.communicate(END, timeout=limit)[0].decode(errors="replace").strip()
        except subprocess.TimeoutExpired as error:
            _stalled.append(limit)
            raise TrackingError(f"W&B did not end within {limit} s; further runs wait for {LATER} s") from error
        finally:
            if self.process.poll() is None:
                self.process.kill()
                self.process.communicate()
            shutil.rmtree(self.scratch, ignore_errors=True)
        if self.process.returncode:
            raise TrackingError(reply or f"W&B's process ended with status {self.process.returncode}")

    def leave(self) -> None:
        """Asks it to end, and does not wait."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # it has died
            self.process.stdin.write(END)
            self.process.stdin.close()
        self.process.stdout.close()
        _left.append(self.process)


def _environment(mode: str, place: Path) -> dict[str, str]:
    if mode == "online":
        return {"WANDB_DATA_DIR": str(place), **os.environ}
    return {
        **os.environ,
        "WANDB_ERROR_REPORTING": "false",  # it looks up a host even offline
        "WANDB_DATA_DIR": str(place),  # copies of tables, which `wandb sync` sends
        "WANDB_CACHE_DIR": str(place / "cache"),  # logs
        "WANDB_CONFIG_DIR": str(place / "config"),
    }
