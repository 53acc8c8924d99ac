"""What tells the runs of a sweep apart: the settings in which their rows differ.

A table or a figure that left out a setting would show two runs as one, and a comparison would take what the setting did
for a difference between verifiers. So every column of what was asked for is here, and of the sampling parameters those
without a column of their own too.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pandas as pd

from specbench.core.sampling_params import NUMBERS, PENALTIES, TOKEN_RULES, SamplingParams

# In the order in which they are told. The sampler's name is left out: its parameters say what it does.
SETTINGS = (
    *("pair", "target", "draft", "drafter", "draft_temperature", "verifier", "engine", "prompt_chunk"),
    *(*NUMBERS, *PENALTIES, "min_tokens", "token_rules", "workload", "prompts", "own_sampling"),
    *("gamma", "batch_size", "group"),
    *("max_new_tokens", "seed", "parallel", "ranks", "device", "dtype", "draft_dtype", "threads", "hardware"),
)
# What follows from another setting, unless rows show that it does not.
FOLLOWS = {
    **{"target": "pair", "draft": "pair", "group": "batch_size", "ranks": "parallel", "draft_dtype": "dtype"},
    "prompts": "workload",
}
OWN_COLUMNS = frozenset({*NUMBERS, *PENALTIES, "min_tokens", *TOKEN_RULES})
SAMPLER = "sampler."  # before a parameter's name, since a sampler's seed is not the run's
_OFF = {
    each.name: list(each.default) if isinstance(each.default, tuple) else each.default
    for each in dataclasses.fields(SamplingParams)
}


def asked(row: pd.Series) -> dict[str, Any]:
    """The sampling parameters of a row of results.RunRow that are not off; none of a row older than the column."""
    given = json.loads(row["sampling"]) if isinstance(row["sampling"], str) else {}
    return {name: value for name, value in given.items() if value != _OFF.get(name)}


def with_sampling(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows, and a column of text for each sampling parameter in which they differ and that has no column, such as
    ``sampler.stop``; empty where it is off.

    Args:
        rows: of results.RunRow.
    """
    every = [asked(row) for _, row in rows.iterrows()]
    names = dict.fromkeys(name for each in every for name in each if name not in OWN_COLUMNS)
    told = {SAMPLER + name: [as_text(each.get(name)) for each in every] for name in names}
    return rows.assign(**{name: texts for name, texts in told.items() if len(set(texts)) > 1})


def varying(rows: pd.DataFrame, *beside: str) -> list[str]:
    """The settings in which rows differ, as names of columns; ``job``, if these do not tell all rows apart.

    Args:
        rows: of with_sampling.
        beside: columns that are shown in any case.
    """
    extra = [name for name in rows if str(name).startswith(SAMPLER)]
    found = [name for name in (*SETTINGS, *extra) if name not in beside and _differs(rows, name)]
    alike = len(rows) > 1 and bool(rows.duplicated([*beside, *found]).any() if beside or found else True)
    return [*found, "job"] if alike and "job" not in beside else found


def _differs(rows: pd.DataFrame, name: str) -> bool:
    if name in FOLLOWS:
        return bool(rows.groupby(FOLLOWS[name], dropna=False)[name].nunique(dropna=False).gt(1).any())
    return rows[name].nunique(dropna=False) > 1


def as_text(value: Any) -> str:
    """A parameter as a column of text has it; empty for None."""
    return "" if value is None else value if isinstance(value, str) else json.dumps(value, sort_keys=True)
