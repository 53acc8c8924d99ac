"""A job's W&B run: made of the job's folder when it has ended, however it ended; live if that disturbs nothing."""

from __future__ import annotations

import os
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from specbench.core.errors import ConfigError, TrackingError
from specbench.core.machine.journal import AXES, PROGRESS
from specbench.reports.tracking.panels import panels
from specbench.reports.tracking.process import LIMITS, Process
from specbench.reports.tracking.settings import LONGEST_NAME, WandbWorkspace, check_settings, tracking_errors

LONG_WAIT = 30.0  # seconds; W&B waits 90 for a server that does not answer, and fails at once for most other reasons
LONGEST_TAG = 64  # characters, by W&B
LONGEST_ERROR = 20_000  # characters of a traceback
TAGGED = ("protocol", "verifier", "drafter", "pair", "engine", "rule", "device")
_waited: dict[str, str] = {}  # by group: why its runs are kept offline, after one waited for W&B's server in vain


def tags_of(facts: Mapping[str, str | None], *words: str) -> list[str]:
    """Tags such as ``verifier:masked``, by which a workspace is filtered.

    Args:
        facts: choices of conf, and what they came to; what is None or not in TAGGED is left out.
        words: tags of their own, such as lossless.
    """
    named = [f"{key}:{facts[key]}" for key in TAGGED if facts.get(key)]
    return [tag[:LONGEST_TAG] for tag in dict.fromkeys([*named, *filter(None, words)])]


def is_tracked(folder: Path) -> bool:
    """Whether the job's attempt has a run, whole or broken off."""
    return any(folder.glob("wandb/*run-*/*.wandb"))


class JobRun:
    """The run of one attempt at a job.

    Args:
        folder: the job's.
        name: what tells it from the others of its sweep.
        kind: W&B's job type: the verifier, or the protocol.
        tags: see :func:`tags_of`; further ones can be added until the run begins.
        config: the resolved configuration.
        number: W&B's name of the run; None makes one.
    """

    def __init__(
        self,
        workspace: WandbWorkspace,
        folder: Path,
        name: str,
        kind: str,
        tags: Sequence[str] = (),
        config: Mapping[str, Any] | None = None,
        number: str | None = None,
    ):
        self.workspace, self.folder = workspace, folder.resolve()
        self.name, self.kind, self.tags, self.config = name, kind, list(tags), dict(config or {})
        self.number = number or uuid.uuid4().hex[:8]
        self.live: Process | None = None

    def begin(self) -> None:
        """Begins it now, so that its curves are seen while the job runs. What fails is told when it ends."""
        if self.workspace.mode == "online" and self.workspace.group not in _waited:
            try:
                self.live = self._process("online", live=True)
            except OSError:  # no room, too many processes: it is tried again when the job has ended
                self.live = None

    def end(self, status: str, reason: str | None = None, verdict: str | None = None) -> None:
        """Logs all that the job's folder holds, and how the job ended.

        Offline, all that W&B writes stays in ``folder/wandb``, no host is looked up, and ``wandb sync`` finds all it
        needs, as long as the folder is not moved. A run that could not be sent is left there as an offline run; if it
        waited for W&B's server in vain, the later runs of its group in this process do not wait again.

        Args:
            status: done, failed, skipped or died; all but done are failures to W&B.
            reason: why it failed or was skipped.
            verdict: why it was found wanting although all was measured.

        Raises:
            TrackingError: and nothing else, whatever failed; it says what was not tracked. The job's files are as they
                were.
        """
        if self.workspace.mode == "disabled":
            return
        try:
            check_settings(self.workspace.mode, self.workspace.project, self.workspace.entity)
        except ConfigError:  # why the job has failed
            return
        try:
            with tracking_errors():
                self.send(self._last(status, reason, verdict))
        finally:
            self.close()

    def send(self, last: Mapping[str, Any]) -> None:
        """Logs the run online or offline, as its workspace says; see ``end``. Raises TrackingError."""
        mode, group, began = self.workspace.mode, self.workspace.group, time.monotonic()
        try:
            if mode == "online" and group in _waited:
                raise TrackingError(_waited[group])
            live, self.live = self.live, None
            (live or self._process(mode)).end(last, LIMITS[mode])
        except TrackingError as error:
            if mode == "offline":
                raise
            if time.monotonic() - began >= LONG_WAIT:
                _waited[group] = f"an earlier run of this sweep could not be sent: {error}"
            self._process("offline").end(last, LIMITS["offline"])
            kept = f"`wandb sync {self.folder}/wandb/offline-run-*` sends it"
            raise TrackingError(f"{error}; kept offline, {kept}") from error

    def close(self) -> None:
        """Lets a live run go that has not ended: it marks itself as broken off."""
        if self.live is not None:
            self.live.leave()
            self.live = None

    def _last(self, status: str, reason: str | None, verdict: str | None) -> dict[str, Any]:
        content = panels(self.folder, self.workspace.texts)
        summary = {"status": status, "reason": reason, "verdict": verdict}
        content["summary"] |= {key: value for key, value in summary.items() if value is not None}
        if (path := self.folder / "error.txt").is_file():
            content["error"] = path.read_text(encoding="utf-8", errors="replace")[-LONGEST_ERROR:]
        done = status == "done"
        return {**content, "tags": [*self.tags, *([] if done else [status])], "exit_code": 0 if done else 1}

    def _process(self, mode: str, live: bool = False) -> Process:
        place, workspace = self.folder / "wandb", self.workspace
        init = {
            "id": self.number,
            "mode": mode,
            "project": workspace.project,
            "entity": workspace.entity,
            "group": _clipped(workspace.group),
            "name": _clipped(self.name),
            "job_type": _clipped(self.kind, LONGEST_TAG),
            "tags": self.tags,
            "dir": str(self.folder),
            "config": self.config,
            **({"resume": "allow"} if mode == "online" else {}),
        }
        first = {
            "task": "run",
            "argv": sys.argv,
            "init": init,
            "live": live,
            "axes": AXES,
            "curves": str(self.folder / PROGRESS),
            "state": str(self.folder / "job.json"),
        }
        return Process(first, self.folder, environment(mode, place), at_once=live)


def environment(mode: str, place: Path) -> dict[str, str]:
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


def _clipped(name: str, length: int = LONGEST_NAME) -> str:
    return name if len(name) <= length else f"{name[: length - 1]}…"
