"""Checks of numbers that a user gives."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any

from specbench.errors import ConfigError


def plain_number(value: Any) -> Any:
    """A number of another library, such as numpy's, as Python's own; anything else, true and false among it, as it is.

    numpy's would be refused where an int is asked for, though they look alike, and JSON does not take them.
    """
    if isinstance(value, bool | int | float):
        return value
    if isinstance(value, Integral):
        return int(value)
    return float(value) if isinstance(value, Real) else value


def check_count(key: str, value: object, least: int = 1, most: int | None = None) -> int:
    """The whole number, as Python's own. Raises ConfigError for anything but one from ``least`` to ``most``."""
    value = plain_number(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < least or (most is not None and value > most):
        remedy = f"Use a whole number from {least}." if most is None else f"Use a whole number from {least} to {most}."
        raise ConfigError(key, value, "not a count", remedy)
    return value


def check_seconds(key: str, value: object, remedy: str = "Use 0 for no limit, or more.") -> float | int:
    """The seconds, as Python's own. Raises ConfigError for anything but a number from 0, with what it says of 0."""
    value = plain_number(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise ConfigError(key, value, "no time in seconds", remedy)
    return value
