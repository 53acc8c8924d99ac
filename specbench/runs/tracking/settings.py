"""What of tracking's settings is refused before anything runs."""

from __future__ import annotations

import functools
import os
import tempfile
from pathlib import Path

from specbench.core.errors import ConfigError, TrackingError
from specbench.runs.config import TrackingConfig
from specbench.runs.tracking.process import LONGEST_NAME, WandbProcess

MODES = ("offline", "online", "disabled")


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
            WandbProcess("login", Path(scratch), "online").end()
    except TrackingError as error:
        return str(error)
    return None
