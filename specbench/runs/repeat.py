"""The commands that run a sweep's jobs again, from its plan, and what it varies."""

from __future__ import annotations

import math
import re
import shlex

from specbench.runs.overrides import key_of
from specbench.runs.plan import Plan


def commands(plan: Plan) -> list[str]:
    """Lines for a shell: one if the jobs are all combinations of some values, as of a sweep, else one a job.

    A line begins with the folder to start in if it needs the user's own modules or configurations.
    """
    jobs = [sorted(job.overrides, key=lambda override: key_of(override) != "exp") for job in plan.jobs]
    lines = [_grid(jobs)] if len(jobs) > 1 and _grid(jobs) else jobs
    return [_line(plan, overrides) for overrides in lines]


def varied(plan: Plan) -> dict[str, list[str]]:
    """The keys of the command line in which jobs differ, each with its values in their order."""
    jobs = [{key_of(override): override.partition("=")[2] for override in job.overrides} for job in plan.jobs]
    keys = dict.fromkeys(key for job in jobs for key in job)
    values = {key: list(dict.fromkeys(job.get(key, "") for job in jobs)) for key in keys}
    return {key: given for key, given in values.items() if len(given) > 1}


def _grid(jobs: list[list[str]]) -> list[str]:
    """One list of overrides for all jobs, with commas between values; empty if there is none."""
    by_key = [{key_of(override): override for override in job} for job in jobs]
    keys = list(by_key[0])
    if any(list(job) != keys or len(job) != len(jobs[0]) for job in by_key):
        return []
    chosen = {key: list(dict.fromkeys(job[key] for job in by_key)) for key in keys}
    values = {key: [override.partition("=")[2] for override in given] for key, given in chosen.items()}
    swept = [value for key, given in chosen.items() if len(given) > 1 for value in values[key]]
    if any(re.search(r"[^\w./:+-]", value) for value in swept):
        return []  # a value that holds commas or quotes
    if math.prod(map(len, chosen.values())) != len(jobs) or len({tuple(job) for job in jobs}) != len(jobs):
        return []
    return [
        given[0] if len(given) == 1 else f"{given[0].partition('=')[0]}={','.join(values[key])}"
        for key, given in chosen.items()
    ]


def _line(plan: Plan, overrides: list[str]) -> str:
    own = ["--config-dir", plan.config_dir] if plan.config_dir is not None else []
    line = shlex.join(["python", "-m", "specbench", *own, *overrides])
    if own or any("_target_=" in override for override in overrides):
        return f"cd {shlex.quote(plan.started_in)} && {line}"
    return line
