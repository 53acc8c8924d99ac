"""Checks of numbers and names that a user gives."""

import difflib
import functools
import os
import sys
from numbers import Integral, Real
from pathlib import Path
from typing import Any, TypeGuard

from specbench.core.errors import ConfigError

LARGEST_COUNT = 2**31 - 1
# Of what a run repeats: more is a slip of the hand, and would run for days without a word.
MOST_ROUNDS, MOST_SAMPLES, MOST_STEPS = 10_000, 100_000, 1_000_000


def plain_number(value: Any) -> Any:
    """A number of another library, such as numpy's, as Python's own; anything else, true and false among it, as it is.

    numpy's would be refused where an int is asked for, though they look alike, and JSON does not take them.
    """
    if isinstance(value, bool | int | float):
        return value
    if isinstance(value, Integral):
        return int(value)
    return float(value) if isinstance(value, Real) else value


def is_whole(value: object) -> TypeGuard[int]:
    """Whether a value is an int; true and false, which Python counts among them, are none."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> TypeGuard[int | float]:
    """Likewise an int or a float."""
    return is_whole(value) or isinstance(value, float)


def check_count(key: str, value: object, least: int = 1, most: int | None = None) -> int:
    """The whole number, as Python's own. Raises ConfigError for anything but one from ``least`` to ``most``, which is
    LARGEST_COUNT if it is None."""
    value, highest = plain_number(value), LARGEST_COUNT if most is None else most
    if not is_whole(value) or not least <= value <= highest:
        bounded = most is not None or (is_whole(value) and value > highest)
        remedy = f"Use a whole number from {least} to {highest}." if bounded else f"Use a whole number from {least}."
        raise ConfigError(key, value, "not a count", remedy)
    return value


def check_number(key: str, value: object, interval: str, remedy: str, problem: str = "") -> float | int:
    """The number, as Python's own. Raises ConfigError for anything but a finite number in an interval.

    Args:
        interval: as mathematics writes it, such as ``(0, 1]``.
        problem: what the error says of any other value; empty for the interval.
    """
    low, high = map(float, interval[1:-1].split(","))
    value = plain_number(value)
    if not is_number(value) or not abs(value) <= sys.float_info.max:
        raise ConfigError(key, value, problem or "not a finite number", remedy)
    open_end = (interval[0] == "(" and value == low) or (interval[-1] == ")" and value == high)
    if open_end or not low <= value <= high:
        outside = "below 0" if interval == "[0, inf)" else f"outside {interval}"
        raise ConfigError(key, value, problem or outside, remedy)
    return value


def check_path(key: str, value: object) -> Path:
    """The path, with ~ as the user's folder. Raises ConfigError for anything but text, such as a name of digits."""
    if not isinstance(value, str | os.PathLike):
        raise ConfigError(key, value, "not a path", "Put ./ before a name of digits.")
    return Path(os.path.expanduser(value))


def check_seconds(
    key: str, value: object, remedy: str = "Use 0 for no limit, or more.", problem: str = "no time in seconds"
) -> float | int:
    """The seconds, as Python's own. Raises ConfigError for anything but a number from 0, with what it says of 0."""
    return check_number(key, value, "[0, inf)", remedy, problem)


def check_chance(key: str, value: object, remedy: str = "Use a number inside it.") -> float:
    """The number, as Python's own. Raises ConfigError for anything but one inside (0, 1)."""
    return float(check_number(key, value, "(0, 1)", remedy))


def check_flag(key: str, value: object) -> bool:
    """The value. Raises ConfigError for anything but true or false."""
    if not isinstance(value, bool):
        raise ConfigError(key, value, "neither true nor false", "Use true or false.")
    return value


@functools.lru_cache(1024)  # lines of a file have the same keys
def nearest(word: str, names: tuple[str, ...], likeness: float = 0.6) -> str:
    """The name that a word is a misspelling of; "" if none is at least so like it, where 1 is the word itself."""
    return next(iter(difflib.get_close_matches(word, names, n=1, cutoff=likeness)), "")
