"""Starts W&B's process, and says what became of it. What is said to it: see wandb_process.py."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specbench.core.errors import TrackingError

LIMITS = {"offline": 300, "online": 900}  # seconds for one run; W&B itself would wait for a lost server for ever
LATER = 60  # seconds for further runs, once W&B has not ended in time: its process may be stopped
PROCESS = Path(__file__).with_name("wandb_process.py")
_stalled: list[int | float] = []  # the limits that W&B has overrun in this process
_left: list[subprocess.Popen[bytes]] = []  # they end by themselves and are not waited for


class Process:
    """W&B's process for one task.

    Args:
        first: the first message: what to do.
        place: a folder in which its temporary files may lie.
        at_once: whether to say it now; otherwise both messages are given together, by ``end``.
    """

    def __init__(self, first: Mapping[str, Any], place: Path, environment: Mapping[str, str], at_once: bool = False):
        self.scratch = tempfile.mkdtemp(prefix=".wandb-", dir=place)
        self.pending = _line({**first, "scratch": self.scratch})
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-P", str(PROCESS)],  # -P: the modules beside it have the names of others
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=dict(environment),
                start_new_session=True,  # Ctrl-C is for the sweep
            )
        except BaseException:
            shutil.rmtree(self.scratch, ignore_errors=True)
            raise
        if at_once:
            assert self.process.stdin is not None
            try:
                self.process.stdin.write(self.pending)
                self.process.stdin.flush()
            except BrokenPipeError:  # it has died; ``end`` says why
                pass
            self.pending = b""

    def end(self, last: Mapping[str, Any] | None, limit: int | float) -> str:
        """Says the last message, and waits until all is done.

        Args:
            limit: seconds, after which it is ended; LATER if an earlier one was not done in time.

        Returns:
            what it said.

        Raises:
            TrackingError: with what it said, or with its status.
        """
        limit = min(limit, LATER) if _stalled else limit
        try:
            messages = self.pending + (b"" if last is None else _line(last))
            reply = self.process.communicate(messages, timeout=limit)[0].decode(errors="replace").strip()
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
        return reply

    def leave(self) -> None:
        """Says nothing more. It finishes the run as broken off, and is not waited for."""
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        _left.append(self.process)


def _line(message: Mapping[str, Any]) -> bytes:
    return json.dumps(message, ensure_ascii=False, default=str).encode("utf-8", "replace") + b"\n"
