"""Where runs go in Weights & Biases, and what of that is refused before anything runs."""

from __future__ import annotations

import contextlib
import functools
import os
import tempfile
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

from specbench.core.errors import ConfigError, SpecbenchError, TrackingError
from specbench.reports.tracking.process import LIMITS, Process

MODES = ("offline", "online", "disabled")
LONGEST_NAME = 128  # characters of a project, an entity, a group or a run, by W&B


@dataclass(frozen=True, kw_only=True)
class WandbWorkspace:
    """Where the runs of one sweep go.

    Attributes:
        mode: one of MODES.
        entity: a user or a team; None is the key's owner.
        group: the sweep, whose runs W&B then shows together.
        texts: how many sample texts of a job are logged.
        live: whether curves are sent while a job runs; None sends them if the job measures no times. Offline nothing is
            sent, and the curves are in the run when the job has ended.
    """

    mode: str
    project: str
    entity: str | None = None
    group: str = ""
    texts: int = 8
    live: bool | None = None


@contextlib.contextmanager
def tracking_errors() -> Generator[None]:
    """Turns any exception of the block into a TrackingError: nothing that W&B lacks may cost a finished job."""
    try:
        yield
    except SpecbenchError as error:
        raise TrackingError(str(error)) from error
    except Exception as error:  # a full disk, an object that is no JSON
        raise TrackingError(f"{type(error).__name__}: {error}") from error


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
            Process({"task": "login"}, Path(scratch), os.environ).end(None, LIMITS["offline"])
    except TrackingError as error:
        return str(error)
    return None
