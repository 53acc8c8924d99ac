"""What Hydra knows of the job that runs; what a job is called in its rows, and the command that repeats it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

from specbench.runs.launchers import beside_each_other, launcher_of
from specbench.runs.plan import read_plan


@dataclass(frozen=True)
class JobInfo:
    """What Hydra knows of a job."""

    number: int
    label: str
    folder: Path
    exp: str
    choices: dict[str, str]
    command: str
    overrides: tuple[str, ...]  # of the command line
    launcher: str
    beside: bool  # whether others of its sweep may run on this machine at the same time

    @property
    def asked(self) -> frozenset[str]:
        """The keys that the command line gives a value."""
        return frozenset(_key(each) for each in self.overrides)

    @property
    def names_pair(self) -> bool:
        """Whether the command line says anything of a pair."""
        return any(key.partition(".")[0] == "pair" for key in self.asked)

    @staticmethod
    def current() -> JobInfo:
        hydra = HydraConfig.get()
        choices = {key: str(value) for key, value in hydra.runtime.choices.items() if not key.startswith("hydra/")}
        given: Any = OmegaConf.to_container(hydra.overrides.task, resolve=False)
        overrides: list[str] = given
        sources = hydra.runtime.config_sources
        folder = Path(hydra.runtime.output_dir)
        plan = read_plan(folder.parent)
        return JobInfo(
            int(folder.name),
            next((job.label for job in plan.jobs if str(job.number) == folder.name), "") if plan else "",
            folder,
            choices.get("exp", "adhoc"),
            choices,
            repeating(overrides, next((s.path for s in sources if s.provider == "command-line"), None)),
            tuple(overrides),
            launcher_of(hydra),
            beside_each_other(hydra),
        )


def _key(override: str) -> str:
    return override.lstrip("+~").partition("=")[0]


def component_name(group: str, choice: str, node: Mapping[str, Any], overrides: Sequence[str]) -> str:
    """The name of a component: its choice in conf, or what the command line made of it.

    ``verifier._target_=mine.Mine`` is named mine.Mine, whatever yaml it started from; ``verifier.bits=8`` stands in
    brackets behind the choice.

    Args:
        group: of conf, such as "verifier".
        node: its resolved configuration.
        overrides: of the command line.
    """
    prefix = f"{group}."
    changed = {_key(each) for each in overrides if _key(each).startswith(prefix)}
    name = choice
    if f"{prefix}_target_" in changed:
        name = str(node.get("_target_", choice))
    settings = sorted(key for key in changed if key != f"{prefix}_target_")
    values = [f"{key.removeprefix(prefix)}={node.get(key.removeprefix(prefix))}" for key in settings]
    return f"{name}[{','.join(values)}]" if values else name


def repeating(overrides: Sequence[str], config_dir: str | None) -> str:
    """A line for a shell that repeats one job; where it needs the user's own modules, from the folder they are in.

    Args:
        overrides: of the job.
        config_dir: what ``--config-dir`` said.
    """
    own = config_dir is not None or any("_target_=" in each for each in overrides)
    command = ["python", "-m", "specbench"]
    if config_dir is not None:
        command += ["--config-dir", str(Path(config_dir).resolve())]
    line = shlex.join([*command, *overrides])
    if not own:
        return line
    path = os.environ.get("PYTHONPATH")
    given = f"PYTHONPATH={shlex.quote(path)} " if path else ""
    return f"cd {shlex.quote(os.getcwd())} && {given}{line}"
