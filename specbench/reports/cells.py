"""Numbers and settings as the tables and sentences of reports have them."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from specbench.core import rounding
from specbench.metrics.columns import Column, columns_of
from specbench.metrics.intervals import CONFIDENCE, FEW, coverage
from specbench.metrics.run_row import RunRow

NONE = "-"


@dataclass(frozen=True, kw_only=True)
class NamedRun(RunRow):
    """A run, and what sentences and figures call it."""

    series: str


Run = columns_of(NamedRun)


def number(value: Any, form: str = ".2f") -> str:
    """A number, Python's or numpy's, as text; a dash for None and NaN."""
    return NONE if pd.isna(value) else format(value, form)


def interval(row: object, column: Column, form: str = ".2f") -> str:
    """An estimate with its 95% interval: ``0.61 [0.58, 0.64]``; alone where there was one unit to resample.

    A speedup whose interval says nothing is said to be uncertain instead.

    Args:
        row: of a frame, or an instance of its dataclass.
        column: of :func:`specbench.metrics.columns.columns_of`.
        form: of each number.
    """
    names = (column, f"{column}_low", f"{column}_high")
    value, low, high = (row[name] if isinstance(row, pd.Series) else getattr(row, name) for name in names)
    if pd.isna(value):
        return NONE
    return rounding.speedup(value, low, high) if column == "speedup" else rounding.interval(value, low, high, form)


def plain(value: object) -> str:
    """A setting as text: 1 for 1.0, a dash for what rows do not have."""
    if pd.isna(value):
        return NONE
    return f"{value:g}" if isinstance(value, float) else str(value)


def values(results: pd.DataFrame, column: Column) -> str:
    """Every value that a column has, in order."""
    return ", ".join(dict.fromkeys(results[column].map(plain)))


def prompts_decoded(results: pd.DataFrame) -> str:
    """How many prompts were decoded: ``16``, or ``6 to 9 of 16`` if rounds of some rows ended early."""
    prompts, decoded = values(results, Run.prompts), results[Run.prompts_decoded]
    if not _ended_early(results):
        return prompts
    if decoded.isna().any():  # rows of sweeps that began before the column was there
        return f"up to {prompts}"
    least, most = int(decoded.min()), int(decoded.max())
    return f"{least} of {prompts}" if least == most else f"{least} to {most} of {prompts}"


def varying_prompts(results: pd.DataFrame) -> list[str]:
    """The heading of the column of decoded prompts, if rows of the same prompts decoded different numbers of them."""
    differ = results[Run.prompts_decoded].nunique(dropna=False) > 1
    return ["prompts decoded"] if differ and _ended_early(results) else []


def _ended_early(results: pd.DataFrame) -> bool:
    return bool((results[Run.prompts_decoded].astype(float) < results[Run.prompts].astype(float)).any())


# The columns of tables of results.RunRow that are more than a setting: how a cell is made of a row, by its heading.
_COLUMNS: dict[str, Callable[[pd.Series], str]] = {
    "prompts decoded": lambda row: plain(row[Run.prompts_decoded]),
    "tokens drafted": lambda row: interval(row, Run.drafted_per_step),
    "acceptance rate": lambda row: interval(row, Run.acceptance_rate),
    "acceptance length": lambda row: interval(row, Run.acceptance_length),
    "tokens a step": lambda row: number(row[Run.tokens] / row[Run.steps]),
    "overlap": lambda row: interval(row, Run.overlap),
    "tokens/s": lambda row: number(row[Run.tokens_per_second], ".1f"),
    "plain tokens/s": lambda row: number(row[Run.plain_tokens_per_second], ".1f"),
    "speedup": lambda row: interval(row, Run.speedup),
    "shared tokens": lambda row: "all" if pd.isna(row[Run.shared_mass]) else plain(row[Run.shared_tokens]),
    "shared mass": lambda row: interval(row, Run.shared_mass),
    "draft share": lambda row: number(row[Run.seconds_draft] / row[Run.seconds], ".1%"),
    "check TV": lambda row: number(row[Run.check_tv], ".3f"),
    "TV (noise)": lambda row: _checked(row, "{tv} ({noise})"),
    "check TV / q99": lambda row: f"{number(row[Run.check_tv], '.3f')} / {number(row[Run.check_tv_noise_q99], '.3f')}",
    "noise mean / q99": lambda row: _checked(row, "{noise} / {q99}"),
    "p": lambda row: number(row[Run.check_p_value], ".3f"),
}


def _checked(row: pd.Series, form: str) -> str:
    """The distances of drawn tokens and of noise from the target; a dash for a run that was not checked."""
    tv, noise, q99 = (number(row[name], ".3f") for name in (Run.check_tv, Run.check_tv_noise, Run.check_tv_noise_q99))
    return NONE if tv == NONE else form.format(tv=tv, noise=noise, q99=q99)


def settings(row: pd.Series, names: Iterable[Column]) -> dict[str, str]:
    """Settings of a row as cells of a table, by name."""
    return {name: plain(row[name]) for name in names}


def table(rows: pd.DataFrame, columns: Iterable[Column]) -> pd.DataFrame:
    """A table of text, described by its columns: headings of _COLUMNS, and settings or texts of the rows by name."""
    return shown(
        rows, lambda row: {name: _COLUMNS[name](row) if name in _COLUMNS else plain(row[name]) for name in columns}
    )


def shown(rows: pd.DataFrame, line: Callable[[pd.Series], Mapping[str, str]]) -> pd.DataFrame:
    """A table of text: what ``line`` makes of each row."""
    return pd.DataFrame([line(row) for _, row in rows.iterrows()])


def file_name(words: str) -> str:
    """A name, such as a verifier's, as part of a file's: letters, digits and underscores."""
    return "".join(letter if letter.isalnum() else "_" for letter in words)


def few_units(name: str, count: int) -> str:
    """A sentence on intervals by bootstrap over few units, such as ``prompts``; empty if there are enough."""
    if count >= FEW:
        return ""
    holds = f"with which a nominal {CONFIDENCE:.0%} holds about {coverage(count):.0%}"
    return f"Intervals need more units: {name} number {count}, {holds if count > 1 else 'which gives no interval'}."
