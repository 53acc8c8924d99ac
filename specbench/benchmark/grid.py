"""Which cases are timed: a base case, and axes that are varied over it."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specbench.core.checks import is_whole
from specbench.core.errors import ConfigError
from specbench.core.machine.devices import DTYPES
from specbench.core.sampling_params import NUMBERS, SHAPING
from specbench.sampling import SamplingParams

AXES = ("batch_size", "vocabulary", "gamma", "dtype", "sampler", "context")
LIMITS = {"batch_size": (1, 65_536), "vocabulary": (2, 2**24), "gamma": (0, 64), "context": (1, 2**20)}
PLAIN = "temperature"  # the sampler of the base case: the run's own, unchanged


@dataclass(frozen=True)
class CaseSpec:
    """One setting to time.

    Attributes:
        sampler: the name of ``sampling`` in protocol.samplers.
        draft_probabilities: False for a deterministic draft, whose q is one-hot.
        context: tokens of each request's text, half of them its prompt; only penalties and bans look at it.
    """

    batch_size: int
    vocabulary: int
    gamma: int
    dtype: str
    sampler: str
    sampling: SamplingParams
    draft_probabilities: bool = True
    context: int = 1024

    def __post_init__(self) -> None:
        for name, (low, high) in LIMITS.items():
            value = getattr(self, name)
            if not is_whole(value) or not low <= value <= high:
                raise ConfigError(f"protocol.grid.{name}", value, f"not in {low}..{high}", "Use a whole number there.")
        if self.dtype not in DTYPES:
            raise ConfigError("protocol.grid.dtype", self.dtype, "unknown", f"Use {', '.join(DTYPES)}.")

    @property
    def logits(self) -> int:
        """How many logits target and draft have together."""
        return self.batch_size * (2 * self.gamma + 1) * self.vocabulary

    def variant(self, base: CaseSpec) -> str:
        """What tells the case from the base case, the batch size aside: ``gamma=8``, or ``base``."""
        different = [axis for axis in AXES[1:] if getattr(self, axis) != getattr(base, axis)]
        return " ".join(f"{axis}={getattr(self, axis)}" for axis in different) or "base"


def samplers(
    settings: Mapping[str, Mapping[str, Any]], sampling: SamplingParams
) -> dict[str, tuple[SamplingParams, bool]]:
    """protocol.samplers by name: the run's own sampling parameters with the changes named, and draft_probabilities.

    Raises:
        ConfigError: an unknown key, or a value outside its range.
    """
    made = {PLAIN: (sampling, True)}
    for name, changes in settings.items() if isinstance(settings, Mapping) else [(None, settings)]:
        if not isinstance(changes, Mapping):
            key = "protocol.samplers" if name is None else f"protocol.samplers.{name}"
            raise ConfigError(key, changes, "no parameters by name", "Write {hot: {temperature: 1.5}}, or {} for none.")
        parameters = dict(changes)
        with_probabilities = parameters.pop("draft_probabilities", True)
        if unknown := sorted(set(parameters) - {*NUMBERS, *SHAPING}):
            key, remedy = unknown[0], f"Use {', '.join((*NUMBERS, *SHAPING))}, draft_probabilities."
            raise ConfigError(f"protocol.samplers.{name}.{key}", parameters[key], "unknown key", remedy)
        try:
            made[name] = (dataclasses.replace(sampling, **parameters), bool(with_probabilities))
        except ConfigError as error:
            key = f"protocol.samplers.{name}.{error.key}"
            raise ConfigError(key, error.value, error.problem, error.remedy) from None
    return made


def cases(base: CaseSpec, grid: Sequence[Any], by_name: Mapping[str, tuple[SamplingParams, bool]]) -> list[CaseSpec]:
    """The cross product of each entry's axes over the base case, in order, each case once.

    Args:
        grid: protocol.grid: a list of {axis: values}; an axis that an entry does not name stays as in the base case.

    Raises:
        ConfigError: no list of entries, an unknown axis or sampler, an entry without values, or a value outside its
            range.
    """
    if isinstance(grid, str) or not isinstance(grid, Sequence) or not grid:
        raise ConfigError("protocol.grid", grid, "not a list of cases", "Write [{batch_size: [1, 8]}, ...].")
    specs: dict[CaseSpec, None] = {}
    for entry in grid:
        if not isinstance(entry, Mapping) or not entry:
            raise ConfigError("protocol.grid", entry, "not a set of axes", "Write [{batch_size: [1, 8]}, ...].")
        for axis, values in entry.items():
            if axis not in AXES:
                raise ConfigError(f"protocol.grid.{axis}", values, "unknown axis", f"Use {', '.join(AXES)}.")
            if isinstance(values, str) or not isinstance(values, Sequence) or not values:
                raise ConfigError(f"protocol.grid.{axis}", values, "not a list of values", "Write [1, 8].")
        for chosen in itertools.product(*entry.values()):
            changes: dict[str, Any] = dict(zip(entry, chosen, strict=True))
            name = changes.get("sampler", base.sampler)
            if name not in by_name:
                raise ConfigError(
                    "protocol.grid.sampler", name, "not in protocol.samplers", f"Use {', '.join(by_name)}."
                )
            changes["sampling"], changes["draft_probabilities"] = by_name[name]
            specs[dataclasses.replace(base, **changes)] = None
    return list(specs)
