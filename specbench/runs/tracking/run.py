"""A W&B run: made of its folder when a job or a sweep has ended, however it ended; live if that disturbs nothing."""

import contextlib
import functools
import os
import tempfile
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specbench.core.errors import ConfigError, TrackingError
from specbench.core.machine.files import clipped
from specbench.runs.config import TrackingConfig
from specbench.runs.tracking.process import LOG_RUN, LOGIN, LONGEST_NAME, WandbProcess

MODES = ("offline", "online", "disabled")
LONG_WAIT = 30.0  # seconds; W&B waits 90 for a server that does not answer, and fails at once for most other reasons
LONGEST_TAG = 64  # characters, by W&B
TAGGED = ("protocol", "verifier", "drafter", "pair", "engine", "rule", "device")
_waited: dict[str, str] = {}  # by group: why its runs are kept offline, after one waited for W&B's server in vain


def tags_of(facts: Mapping[str, str | None], *words: str) -> list[str]:
    """Tags such as ``verifier:masked``, by which a workspace is filtered.

    Args:
        facts: choices of conf, and what they came to; what is None or not in TAGGED is left out.
        words: tags of their own, such as lossless.
    """
    named = [f"{key}:{facts[key]}" for key in TAGGED if facts.get(key)]
    return [tag[:LONGEST_TAG] for tag in dict.fromkeys([*named, *words])]


@dataclass(kw_only=True)
class TrackedRun:
    """The run of one attempt at a job, or of a sweep.

    Attributes:
        group: the sweep, whose runs W&B then shows together.
        name: what tells it from the others of its sweep.
        kind: W&B's job type: the verifier, or the protocol; ``sweep`` of a sweep.
        tags: see :func:`tags_of`; further ones can be added until the run begins.
        config: the resolved configuration.
        number: W&B's name of the run.
    """

    settings: TrackingConfig
    group: str
    folder: Path
    name: str
    kind: str
    tags: list[str] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)
    number: str = field(default_factory=lambda: uuid.uuid4().hex[:8])
    live: WandbProcess | None = None

    def begin(self) -> None:
        """Begins it now, so that its curves are seen while the job runs. What fails is told when it ends."""
        if self.settings.mode == "online" and self.group not in _waited:
            with contextlib.suppress(TrackingError):  # no room, too many processes: tried again when the job has ended
                self.live = self._process("online", live=True)

    def end(self) -> str:
        """Logs all that the folder holds, and how the job or the sweep ended; all but done are failures to W&B.

        Offline, all that W&B writes stays in ``folder/wandb``, no host is looked up, and ``wandb sync`` finds all it
        needs, as long as the folder is not moved. A run that could not be sent is left there as an offline run; if it
        waited for W&B's server in vain, the later runs of its group in this process do not wait again.

        Returns:
            A warning of what was not tracked; empty if nothing failed. The job's files are as they were.
        """
        try:
            if self.settings.mode != "disabled":
                check_settings(self.settings)
                self._send()
        except ConfigError:  # why the job has failed
            pass
        except TrackingError as error:
            return f"not tracked in W&B ({error})"
        finally:
            self.close()
        return ""

    def _send(self) -> None:
        mode, began = self.settings.mode, time.monotonic()
        try:
            if mode == "online" and self.group in _waited:
                raise TrackingError(_waited[self.group])
            live, self.live = self.live, None
            (live or self._process(mode)).end()
        except TrackingError as error:
            if mode == "offline":
                raise
            if time.monotonic() - began >= LONG_WAIT:
                _waited[self.group] = f"an earlier run of this sweep could not be sent: {error}"
            self._process("offline").end()
            kept = f"`wandb sync {self.folder.resolve()}/wandb/offline-run-*` sends it"
            raise TrackingError(f"{error}; kept offline, {kept}") from error

    def close(self) -> None:
        """Lets a live run go that has not ended: it marks itself as broken off."""
        if self.live is not None:
            self.live.leave()
            self.live = None

    def _process(self, mode: str, live: bool = False) -> WandbProcess:
        init = {
            "id": self.number,
            "mode": mode,
            "project": self.settings.project,
            "entity": self.settings.entity,
            "group": clipped(self.group, LONGEST_NAME),
            "name": clipped(self.name, LONGEST_NAME),
            "job_type": clipped(self.kind, LONGEST_TAG),
            "tags": self.tags,
            "config": self.config,
            **({"resume": "allow"} if mode == "online" else {}),
        }
        folder = self.folder.resolve()
        return WandbProcess(LOG_RUN, folder, mode, folder=str(folder), init=init, live=live, texts=self.settings.texts)


def check_settings(settings: TrackingConfig) -> None:
    """What W&B would refuse only after a run, or take and then lose: mode, names, online without a key.

    Raises:
        ConfigError: names the key, the value and what to write instead.
    """
    mode = settings.mode
    if mode not in MODES:
        raise ConfigError("tracking.mode", mode, "not a mode", f"Use {', '.join(MODES)}.")
    for key, name in (("project", settings.project), ("entity", settings.entity)):
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
            WandbProcess(LOGIN, Path(scratch), "online").end()
    except TrackingError as error:
        return str(error)
    return None
