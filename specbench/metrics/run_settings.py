"""The settings in which runs differ: of rows, the columns that tell them apart, and those of the same plain work.

A table or a figure that left out a setting would show two runs as one, and a comparison would take what the setting did
for a difference between verifiers. So every value of the configuration counts: by its column, or, if it has none, by
its path in the column ``config``, such as ``protocol.check.draws``.
"""

import json
from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd

from specbench.core.sampling_params import DEFAULTS, PLAIN_WORK
from specbench.metrics.columns import Column, typed
from specbench.metrics.run_row import COVERED, SETTINGS, RunRow, leaves

SAMPLER = "sampler."  # before a parameter's name, since a sampler's seed is not the run's
SPECULATION = ("drafter", "verifier", "gamma", "pair.draft", "pair.draft_dtype")  # what plain decoding does not read
TEXTS = ("sampler", "seed")  # what decides texts, and hardly the time a token
_OFF = {name: list(value) if isinstance(value, tuple) else value for name, value in DEFAULTS.items()}  # as JSON has it


def sampling_of(run: RunRow) -> dict[str, Any]:
    """The sampling parameters of a run that are not off; none of a row older than the column ``sampling``."""
    parameters = json.loads(run.sampling) if run.sampling else {}
    return {name: value for name, value in parameters.items() if value != _OFF.get(name)}


def with_settings(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows, with a column of text for each value of the configuration in which they differ and that has no column.

    The text is empty where a row has no such value, or a parameter is off. It is None where nothing is known, since the
    row is older than the column ``config``.
    """
    runs = typed(rows, RunRow)
    by_row, unknown = [_values(run) for run in runs], [run.config is None for run in runs]
    columns = {
        path: [
            None if old and not path.startswith(SAMPLER) else as_text(values.get(path))
            for values, old in zip(by_row, unknown, strict=True)
        ]
        for path in dict.fromkeys(path for values in by_row for path in values)
    }
    return rows.assign(**{path: texts for path, texts in columns.items() if len(set(texts) - {None}) > 1})


def distinguishing_columns(rows: pd.DataFrame, *shown: Column) -> list[str]:
    """The settings in which rows differ, as names of columns; ``job``, if these do not tell all rows apart.

    Args:
        shown: columns that are shown in any case.
    """
    names = [name for name in _columns(rows) if name not in shown and _differs(rows, name)]
    alike = len(rows) > 1 and bool(rows.duplicated([*shown, *names]).any() if shown or names else True)
    return [*names, "job"] if alike and "job" not in shown else names


def plain_work_columns(rows: pd.DataFrame, texts: bool) -> list[str]:
    """The settings on which the time of plain decoding depends.

    Args:
        texts: whether to add settings that decide its texts.
    """
    work = {SAMPLER + name for name in PLAIN_WORK}
    return [
        name
        for name, paths in _columns(rows).items()
        if not _within(paths, SPECULATION) and (texts or name in work or not _within(paths, TEXTS))
    ]


def as_text(value: Any) -> str:
    """A parameter as a column of text has it; empty for None."""
    return "" if value is None else value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def _columns(rows: pd.DataFrame) -> dict[str, tuple[str, ...]]:
    """The columns that tables show, those of with_settings behind the others, and the values that each stands for."""
    added = dict.fromkeys(path for run in typed(rows, RunRow) for path in _values(run) if path in rows)
    return {name: setting.paths for name, setting in SETTINGS.items() if setting.in_tables} | {
        path: (path,) for path in added
    }


def _values(run: RunRow) -> dict[str, Any]:
    """The values of a run's configuration that have no column, by path; of the sampler only values that are not off."""
    config = json.loads(run.config) if run.config else {}
    values = dict(leaves({key: value for key, value in config.items() if key not in ("choices", "sampler")}))
    values |= {SAMPLER + name: value for name, value in sampling_of(run).items()}
    return {path: value for path, value in values.items() if path not in COVERED}


def _differs(rows: pd.DataFrame, name: str) -> bool:
    """Whether rows differ in a setting that does not follow from another, such as ``drafter.lag`` from ``drafter``."""
    key = name.partition(".")[0]
    group = SETTINGS[name].follows if name in SETTINGS else key if key in SETTINGS and SETTINGS[key].in_tables else None
    values = rows[name] if group is None else rows.groupby(group, dropna=False)[name]
    return bool(np.any(values.nunique(dropna=name not in SETTINGS) > 1))


def _within(paths: Iterable[str], keys: Iterable[str]) -> bool:
    return any(f"{path}.".startswith(f"{key}.") for path in paths for key in keys)
