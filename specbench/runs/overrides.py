"""Overrides of a command line, ``key=value`` each: what they are of, and what tells two jobs apart."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Sequence

from hydra.core.override_parser.types import ChoiceSweep, Override, RangeSweep

from specbench.errors import ConfigError

MOST_JOBS = 10_000
FAMILIES = {("verifier", "flawed"): "bug"}  # a choice that stands for many, and the setting that says which


def key_of(override: str) -> str:
    """What an override is of: ``gamma`` of ``++gamma=3``."""
    return override.lstrip("+~").partition("=")[0]


def typed(key: str, value: str) -> str:
    """``key=value`` as it is typed into a shell: in quotes for Hydra and for the shell, if a character needs them."""
    if re.fullmatch(r"[\w./:+-]+", value, re.ASCII):
        return f"{key}={value}"
    return shlex.quote(f"{key}={in_quotes(value)}")


def in_quotes(value: str) -> str:
    """A text in double quotes, in which Hydra reads any character."""
    escaped = re.sub(r'(\\*)("|$)', lambda found: 2 * found[1] + found[2].replace('"', '\\"'), value)
    return f'"{escaped}"'


def choice_of(group: str, name: str) -> tuple[str, dict[str, str]]:
    """The choice of conf that a name in results stands for, and its settings.

    One of a family, such as ``flawed/NAME``, is the choice ``flawed`` with ``bug=NAME``. Others are choices themselves.
    """
    choice, _, member = name.rpartition("/")
    setting = FAMILIES.get((group, choice))
    return (name, {}) if setting is None else (choice, {setting: member})


def spelled_out(override: str) -> list[str]:
    """``verifier=flawed/NAME`` as ``verifier=flawed verifier.bug=NAME``; any other override as it is."""
    group, _, name = override.partition("=")
    choice, settings = choice_of(group, name)
    if not settings or "," in name:  # the sweeper takes lists apart first
        return [override]
    return [f"{group}={choice}", *(f"{group}.{key}={value}" for key, value in settings.items())]


def check_number_of_jobs(overrides: Sequence[Override]) -> None:
    """Raises ConfigError for a sweep of more than MOST_JOBS jobs, before their list is made. The last of a key counts,
    and a range or a list with commas multiplies."""
    sizes = {each.key_or_group: (each, _values(each)) for each in overrides}
    if math.prod(size for _, size in sizes.values()) > MOST_JOBS:
        longest, size = max(sizes.values(), key=lambda pair: pair[1])
        problem = f"{size:,} values, and more than {MOST_JOBS:,} jobs with the other keys"
        value = str(longest.input_line).partition("=")[2]
        raise ConfigError(longest.key_or_group, value, problem, "Sweep over fewer values.")


def _values(override: Override) -> int:
    """How many values an override gives its key."""
    given = override.value() if override.is_sweep_override() else None
    if isinstance(given, RangeSweep) and given.start is not None and given.stop is not None and given.step:
        return max(0, math.ceil((given.stop - given.start) / given.step))
    return len(given.list) if isinstance(given, ChoiceSweep) else 1


def labels_of(jobs: Sequence[Sequence[str]]) -> list[str]:
    """What tells jobs of one sweep apart, by the overrides of each: those that not all of them have."""
    alone = {each for each in jobs[0] if key_of(each) == "exp"}
    shared = set(jobs[0]).intersection(*jobs) if len(jobs) > 1 else alone
    return [",".join(each for each in overrides if each not in shared) or "defaults" for overrides in jobs]
