"""The job that runs in this process: what Hydra knows of it, and which rules it knows."""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

from specbench.core.machine import ranks
from specbench.rules.info import RULES
from specbench.runs.checks import choices_of, launcher_of, shares_machine
from specbench.runs.choices import names_own_code
from specbench.runs.plan import Plan, command_line, read_plan


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
    plan: Plan | None  # of its sweep; None if it was moved away
    beside: bool  # whether others of its sweep may run on this machine at the same time
    in_turn: bool  # whether its sweep's jobs run one after the other in this process alone

    @staticmethod
    def current() -> JobInfo:
        hydra = HydraConfig.get()
        choices = choices_of(hydra)
        overrides: Any = OmegaConf.to_container(hydra.overrides.task, resolve=False)
        folder = Path(hydra.runtime.output_dir)
        plan = read_plan(folder.parent)
        return JobInfo(
            int(folder.name),
            next((job.label for job in plan.jobs if str(job.number) == folder.name), "") if plan else "",
            folder,
            choices.get("exp", "adhoc"),
            choices,
            command_line(overrides, plan.config_dir if plan else None, os.getcwd(), os.environ.get("PYTHONPATH", "")),
            tuple(overrides),
            plan,
            shares_machine(hydra),
            launcher_of(hydra) == "basic" and ranks.size() == 1,
        )


_of_jobs: set[str] = set()  # the rules that users' modules registered while a job ran in this process


@contextmanager
def rules_of_job(*configurations: Mapping[str, Any]) -> Generator[None]:
    """Inside runs a job, which knows the rules that it would know in a process of its own.

    A user's module registers its rules once, when the first job imports it. They are unregistered while a job runs
    whose configuration names no code but specbench's.

    Args:
        configurations: the job's own, and those of jobs that share its rounds.
    """
    foreign = [] if names_own_code(list(configurations)) else [name for name in RULES if name in _of_jobs]
    aside = {name: RULES.pop(name) for name in foreign}
    before = set(RULES)
    try:
        yield
    finally:
        _of_jobs.update(RULES.keys() - before)
        RULES.update(aside)
