"""Overrides of a command line, ``key=value`` each: what they are of, and the jobs that they make."""

from __future__ import annotations

import itertools
import math
import re
import shlex
from collections.abc import Sequence

from hydra.core.override_parser.types import ChoiceSweep, Override, RangeSweep

from specbench.core.errors import ConfigError
from specbench.core.machine.signals import held_back

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
    escaped = re.sub(r'(\\*)("|$)', lambda match: 2 * match[1] + match[2].replace('"', '\\"'), value)
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


def labels_of(jobs: Sequence[Sequence[str]]) -> list[str]:
    """What tells jobs of one sweep apart, by the overrides of each: those that not all of them have."""
    alone = {override for override in jobs[0] if key_of(override) == "exp"}
    shared = set(jobs[0]).intersection(*jobs) if len(jobs) > 1 else alone
    return [",".join(override for override in overrides if override not in shared) or "defaults" for overrides in jobs]


def combinations(overrides: Sequence[Override]) -> list[list[str]]:
    """The overrides of each job: all combinations of the values that keys are given, the last ones of each key.

    Raises:
        ConfigError: more than MOST_JOBS jobs, or values that cannot be listed.
    """
    last = {override.get_key_element(): override for override in overrides}
    sizes = {key: _number_of_values(override) for key, override in last.items()}
    if math.prod(sizes.values()) > MOST_JOBS:
        key = max(sizes, key=sizes.__getitem__)
        problem = f"{sizes[key]:,} values, and more than {MOST_JOBS:,} jobs with the other keys"
        value = str(last[key].input_line).partition("=")[2]
        raise ConfigError(key, value, problem, "Sweep over fewer values.")
    lists = [
        [f"{key}={value}" for value in override.sweep_string_iterator()]
        if override.is_sweep_override()
        else [f"{key}={override.get_value_element_as_str()}"]
        for key, override in last.items()
    ]
    return [[part for override in job for part in spelled_out(override)] for job in itertools.product(*lists)]


def _number_of_values(override: Override) -> int:
    if not override.is_sweep_override():
        return 1
    if not override.is_discrete_sweep():
        value = str(override.input_line).partition("=")[2]
        raise ConfigError(override.key_or_group, value, "not a list of values", "Use commas or range(start,stop).")
    given = override.value()
    if isinstance(given, RangeSweep) and given.start is not None and given.stop is not None and given.step:
        return max(0, math.ceil((given.stop - given.start) / given.step))
    return len(given.list) if isinstance(given, ChoiceSweep) else 1


def with_every_bug(override: str) -> str:
    """``verifier=flawed/all`` and ``verifier.bug=all`` with the names of all bugs; any other override as it is."""
    key, _, value = override.partition("=")
    word = {"verifier": "flawed/all", "verifier.bug": "all"}.get(key)
    values = [choice.strip() for choice in value.split(",")]
    if word not in values:
        return override
    with held_back():
        from specbench.exactness.zoo.bugs import bugs  # which imports PyTorch
    members = ",".join(f"{word.removesuffix('all')}{bug}" for bug in bugs())
    return f"{key}={','.join(members if choice == word else choice for choice in values)}"
