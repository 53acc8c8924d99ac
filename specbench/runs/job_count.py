"""How many jobs a sweep has, before they are listed. Apart from overrides.py, which reports read without Hydra."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hydra.core.override_parser.types import ChoiceSweep, Override, RangeSweep

from specbench.core.errors import ConfigError

MOST_JOBS = 10_000


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
