"""The jobs that the overrides of a command line make: all combinations of their values, each with the keys it has."""

import itertools
import math
from collections.abc import Sequence

from hydra.core.override_parser.types import ChoiceSweep, Override, RangeSweep

from specbench.core.errors import ConfigError
from specbench.core.machine.signals import held_back
from specbench.runs.choices import keys, names
from specbench.runs.config import OPEN_GROUPS
from specbench.runs.overrides import choice_of, key_of, spelled_out, values_of

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


def lacks(group: str, name: str, key: str) -> bool:
    """Whether a choice of conf has no such key; of a user's own choices nothing is known."""
    choice, settings = choice_of(group, name)
    return choice in names(group) and key not in settings and key.partition(".")[0] not in keys(group, choice)


def is_of_choice(override: str) -> bool:
    """Whether an override is of a key that choices of its group have, such as ``drafter.layers=8``."""
    group, _, key = key_of(override).partition(".")
    return bool(key) and group in OPEN_GROUPS


def with_own_keys(jobs: Sequence[Sequence[str]]) -> list[list[str]]:
    """The overrides of each job, without keys that its own choice lacks and another job's choice has.

    Of ``drafter=layer_skip,prompt_lookup drafter.layers=8`` the second is for the jobs of layer_skip. A key that no
    job's choice has stays, and Hydra refuses it. Jobs that become equal are one.
    """

    def lacked(job: Sequence[str]) -> set[str]:
        choice = values_of(job)
        parts = [key_of(override).partition(".") for override in job if is_of_choice(override)]
        return {f"{group}.{key}" for group, _, key in parts if group in choice and lacks(group, choice[group], key)}

    lacking = [lacked(job) for job in jobs]
    unknown = set.intersection(*lacking) if lacking else set()
    kept: list[list[str]] = []
    for job, foreign in zip(jobs, lacking, strict=True):
        remaining = [override for override in job if key_of(override) not in foreign - unknown]
        if len(remaining) == len(job) or remaining not in kept:
            kept.append(remaining)
    return kept
