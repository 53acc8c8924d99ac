"""Numbers and settings as the tables and sentences of reports have them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd

from specbench.core import rounding
from specbench.metrics.intervals import CONFIDENCE, FEW, coverage

NONE = "-"


def number(value: Any, form: str = ".2f") -> str:
    """A number, Python's or numpy's, as text; a dash for None and NaN."""
    return NONE if pd.isna(value) else format(value, form)


def interval(row: pd.Series, name: str, form: str = ".2f") -> str:
    """An estimate with its 95% interval: ``0.61 [0.58, 0.64]``; alone where there was one unit to resample.

    A speedup whose interval says nothing is said to be uncertain instead.
    """
    value, low, high = (row[name + suffix] for suffix in ("", "_low", "_high"))
    if pd.isna(value):
        return NONE
    return rounding.speedup(value, low, high) if name == "speedup" else rounding.interval(value, low, high, form)


def plain(value: object) -> str:
    """A setting as text: 1 for 1.0, a dash for what rows do not have."""
    if pd.isna(value):
        return NONE
    return f"{value:g}" if isinstance(value, float) else str(value)


def values(results: pd.DataFrame, column: str) -> str:
    """Every value that a column has, in order."""
    return ", ".join(dict.fromkeys(results[column].map(plain)))


def shown(rows: pd.DataFrame, line: Callable[[pd.Series], Mapping[str, str]]) -> pd.DataFrame:
    """A table of text: what ``line`` makes of each row."""
    return pd.DataFrame([line(row) for _, row in rows.iterrows()])


def file_name(words: str) -> str:
    """A name, such as a verifier's, as part of a file's: letters, digits and underscores."""
    return "".join(letter if letter.isalnum() else "_" for letter in words)


def few_units(units: Mapping[str, int]) -> str:
    """A sentence on intervals by bootstrap over few units, given how many of each kind; empty where all are enough.

    Args:
        units: such as {"prompts": 12}.
    """
    few = [
        f"{name} number {count}, with which a nominal {CONFIDENCE:.0%} holds about {coverage(count):.0%}"
        if count > 1
        else f"{name} number {count}, which gives no interval"
        for name, count in units.items()
        if count < FEW
    ]
    return f"Intervals need more units: {'; '.join(few)}." if few else ""
