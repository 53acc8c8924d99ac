"""Checks of numbers that a user gives."""

from __future__ import annotations

import math

from specbench.errors import ConfigError


def check_count(key: str, value: object, least: int = 1) -> int:
    """Raises ConfigError for anything but a whole number from ``least``."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(key, value, "not a count", f"Use a whole number from {least}.")
    return value


def check_seconds(key: str, value: object) -> float | int:
    """Raises ConfigError for anything but a number from 0, which is no limit."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise ConfigError(key, value, "no time in seconds", "Use 0 for no limit, or more.")
    return value
