"""The job that runs in this process: what its launcher knows of it, and which rules it knows."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specbench.rules.info import RULES
from specbench.runs.plan import Plan


@dataclass(frozen=True)
class JobInfo:
    """What its launcher knows of a job (``launchers.job_of``)."""

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


_of_jobs: set[str] = set()  # the rules that users' modules registered while a job ran in this process


@contextmanager
def rules_of_job(*configurations: Mapping[str, Any]) -> Generator[None]:
    """Inside runs a job, which knows the rules that it would know in a process of its own.

    A user's module registers its rules once, when the first job imports it. They are unregistered while a job runs
    whose configuration names no code but specbench's.

    Args:
        configurations: the job's own, and those of jobs that share its rounds.
    """
    foreign = [] if any(map(_names_own_code, configurations)) else [name for name in RULES if name in _of_jobs]
    aside = {name: RULES.pop(name) for name in foreign}
    before = set(RULES)
    try:
        yield
    finally:
        _of_jobs.update(RULES.keys() - before)
        RULES.update(aside)


def _names_own_code(node: Any) -> bool:
    """Whether a configuration names a class or function (``_target_``) that is not specbench's own."""
    if isinstance(node, list):
        return any(map(_names_own_code, node))
    if not isinstance(node, Mapping):
        return False
    own = not str(node.get("_target_") or "specbench.").startswith("specbench.")
    return own or any(map(_names_own_code, node.values()))
