"""The commands that run a sweep's jobs again, from its plan, and what it varies."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Sequence

from specbench.runs.overrides import key_of, values_of
from specbench.runs.plan import Plan


def commands(plan: Plan) -> list[str]:
    """Lines for a shell: one if the jobs are all combinations of some values, as of a sweep, else one a job."""
    jobs = [sorted(job.overrides, key=lambda override: key_of(override) != "exp") for job in plan.jobs]
    lines = [_grid(jobs)] if len(jobs) > 1 and _grid(jobs) else jobs
    return [command_line(overrides, plan.config_dir, plan.started_in) for overrides in lines]


def varied(plan: Plan) -> dict[str, list[str]]:
    """The keys of the command line in which jobs differ, each with its values in their order."""
    jobs = [values_of(job.overrides) for job in plan.jobs]
    keys = dict.fromkeys(key for job in jobs for key in job)
    values = {key: list(dict.fromkeys(job.get(key, "") for job in jobs)) for key in keys}
    return {key: different for key, different in values.items() if len(different) > 1}


def _grid(jobs: list[list[str]]) -> list[str]:
    """One list of overrides for all jobs, with commas between values; empty if there is none."""
    by_key = [{key_of(override): override for override in job} for job in jobs]
    keys = list(by_key[0])
    if any(list(job) != keys or len(job) != len(jobs[0]) for job in by_key):
        return []
    grid: list[str] = []
    sizes: list[int] = []
    for key in keys:
        first, *others = dict.fromkeys(job[key] for job in by_key)
        values = [override.partition("=")[2] for override in (first, *others)]
        if others and any(re.search(r"[^\w./:+-]", value) for value in values):
            return []  # a value that holds commas or quotes
        grid.append(f"{first.partition('=')[0]}={','.join(values)}" if others else first)
        sizes.append(len(values))
    return grid if math.prod(sizes) == len(jobs) == len({tuple(job) for job in jobs}) else []


def command_line(overrides: Sequence[str], config_dir: str | None, folder: str, python_path: str = "") -> str:
    """A line for a shell that runs a job or a sweep.

    Args:
        config_dir: the user's own configurations (``--config-dir``), as an absolute path.
        folder: where to start; named only if the user's own modules or configurations are needed.
        python_path: of the environment, which such modules may be found by.
    """
    flags = [] if config_dir is None else ["--config-dir", config_dir]
    line = shlex.join(["python", "-m", "specbench", *flags, *overrides])
    if not flags and not any("_target_=" in override for override in overrides):
        return line
    path = f"PYTHONPATH={shlex.quote(python_path)} " if python_path else ""
    return f"cd {shlex.quote(folder)} && {path}{line}"
