"""Numbers as text.

Bounds and estimates to two digits: an upper bound is never shown below itself, a lower one never above. Intervals.
"""

import math
from collections.abc import Callable


def most(value: float | None) -> str:
    """An upper bound to two digits, rounded up; a dash for None."""
    return _digits(value, math.ceil)


def least(value: float | None) -> str:
    """A lower bound to two digits, rounded down."""
    return _digits(value, math.floor)


def about(value: float | None) -> str:
    """An estimate to two digits."""
    return _digits(value, round)


def interval(value: float, low: float | None, high: float | None, form: str = ".2f") -> str:
    """An estimate with its interval: ``0.61 [0.58, 0.64]``; alone where it has none, or one of width 0."""
    has_width = low is not None and high is not None and low != high and not math.isnan(low)
    return f"{value:{form}} [{low:{form}}, {high:{form}}]" if has_width else f"{value:{form}}"


def speedup(value: float, low: float | None, high: float | None) -> str:
    """A speedup with its interval; in words if that reaches from less than half to more than double of it."""
    if low is None or high is None or math.isnan(low) or not (0 < 2 * low < value < high / 2):
        return interval(value, low, high)
    return f"{value:.2f} (uncertain by a factor of {float(f'{max(high / value, value / low):.2g}'):g})"


def _digits(value: float | None, to_whole: Callable[[float], int]) -> str:
    if not value:
        return "-" if value is None else "0"
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    return f"{to_whole(value / unit) * unit:.2g}"
