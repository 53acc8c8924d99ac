"""The jobs that the overrides of a command line make: all combinations of their values."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from hydra.core.override_parser.types import ChoiceSweep, Override, RangeSweep

from specbench.core.errors import ConfigError
from specbench.core.machine.signals import held_back
from specbench.runs.overrides import spelled_out

MOST_JOBS = 10_000


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
    values = override.value()
    if isinstance(values, RangeSweep) and values.start is not None and values.stop is not None and values.step:
        return max(0, math.ceil((values.stop - values.start) / values.step))
    return len(values.list) if isinstance(values, ChoiceSweep) else 1


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
