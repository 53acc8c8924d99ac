"""What does each sampling parameter do to acceptance?"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd

from specbench.core.sampling_params import DEFAULTS
from specbench.metrics.run_row import COLUMNS_OF, COVERED, SETTINGS
from specbench.metrics.run_settings import SAMPLER, as_text, distinguishing_columns, sampling_of
from specbench.reports import Report, Table, cells
from specbench.reports.cells import plain
from specbench.reports.plots import comparisons as plots

from .command import main
from .decoding import latency
from .folder import read_rows
from .page import page

BASE = "temperature"  # the sampler that asks for nothing else
# The parameters that have a column, and the values that switch them off.
OFF = {
    name: DEFAULTS[name] for name, setting in SETTINGS.items() if setting.paths == (SAMPLER + name,) and name != BASE
}
STRUCTURE = "structured_outputs"
Comparison = tuple[pd.Series, dict[str, str], dict[str, pd.DataFrame]]


def build(run_dir: Path) -> Report:
    """The report of a sweep of samplers, or of temperatures of target and draft."""
    results = read_rows(run_dir, "sampler", "acceptance_length")
    varied = settings(results)
    results["series"] = labels(results, varied)  # what sentences and the figure call a row
    bases = results["series"][own_bases(results)].tolist()
    shown = {
        "table": Table("table", table(results, varied), results.drop(columns="series"), left=("sampler", "asks for")),
        **latency(results, ["series"]),
        "acceptance_by_sampler": plots.acceptance_by_sampler(results, bases),
    }
    comparisons = list(compared(results, varied))
    return page(run_dir, results, "parameters", shown, comparisons=comparisons, bases=bases)


def settings(results: pd.DataFrame) -> list[str]:
    """The columns in which rows differ, sampling apart: all of that is in what a row asks for."""
    columns = {"draft_temperature", *COLUMNS_OF["sampler"]}
    return [name for name in distinguishing_columns(results, *columns.intersection(results)) if name != "job"]


def labels(results: pd.DataFrame, varied: Sequence[str] = ()) -> list[str]:
    """What each row is called: its sampler, the temperatures and settings in which rows differ; all that it asks for,
    if another row has that name too."""
    several = results["temperature"].nunique() > 1
    named = []
    for _, row in results.iterrows():
        at = f", T={row['temperature']:g}" if several else ""
        draft = "" if pd.isna(row["draft_temperature"]) else f", drafts at {row['draft_temperature']:g}"
        others = "".join(f", {name} {plain(row[name])}" for name in varied)
        named.append(f"{row['sampler']}{at}{draft}{others}")
    asks = [f"{name} ({parameters_of(row)})" for name, (_, row) in zip(named, results.iterrows(), strict=True)]
    return [ask if named.count(name) > 1 else name for name, ask in zip(named, asks, strict=True)]


def own_bases(results: pd.DataFrame) -> pd.Series:
    """Which rows ask for nothing but a temperature, which drafts share."""
    shared = results["draft_temperature"].isna() | (results["draft_temperature"] == results["temperature"])
    alone = results.apply(lambda row: not set(sampling_of(row)) - {"temperature"}, axis=1)
    return (results["sampler"] == BASE) & shared & alone


def table(results: pd.DataFrame, varied: Sequence[str]) -> pd.DataFrame:
    """The rows as text."""
    rows = results.assign(**{"asks for": [parameters_of(row) for _, row in results.iterrows()]})
    measured = ("overlap", "acceptance rate", "acceptance length", "check TV / q99", "p")
    return cells.table(rows, ["sampler", "asks for", *varied, *measured])


def parameters_of(row: pd.Series) -> str:
    """The parameters of a row that are not off."""
    numbers = {name: row[name] for name, off in OFF.items() if pd.notna(row[name]) and row[name] != off}
    words = [f"T={row['temperature']:g}", *(f"{name}={value:g}" for name, value in numbers.items())]
    if pd.notna(row["draft_temperature"]):
        words.append(f"draft T={row['draft_temperature']:g}")
    rules = json.loads(row["token_rules"]) if isinstance(row["token_rules"], str) and row["token_rules"] else {}
    words += [f"{name}={json.dumps(value)}" for name, value in rules.items()]
    words += [f"{kind}={text}" for kind, text in structure(row).items()]
    columns = {STRUCTURE, *(path.removeprefix(SAMPLER) for path in COVERED)}
    others = {name: value for name, value in sampling_of(row).items() if name not in columns}
    return " ".join([*words, *(f"{name}={as_text(value)}" for name, value in others.items())])


def structure(row: pd.Series) -> dict[str, str]:
    """What the texts of a row have to be, by its kind; empty for anything."""
    sampling = json.loads(row["sampling"]) if isinstance(row["sampling"], str) else {}
    structures = sampling.get(STRUCTURE) or {}
    return {kind: value if isinstance(value, str) else json.dumps(value) for kind, value in structures.items()}


def compared(results: pd.DataFrame, varied: Sequence[str]) -> Iterator[Comparison]:
    """Each temperature alone, its settings, and the samplers of the same temperature with an overlap above or below its
    own by intervals that do not touch.

    Args:
        varied: columns in which rows have to be alike to be compared.
    """
    rows = results[results["overlap"].notna()]
    alike = rows.groupby(["temperature", *varied], dropna=False).ngroup()
    for place, base in rows[own_bases(rows)].iterrows():
        others = rows[~own_bases(rows) & (alike == alike[place])]
        if len(others):
            above = others[others["overlap_low"] > base["overlap_high"]]
            below = others[others["overlap_high"] < base["overlap_low"]]
            yield base, cells.settings(base, varied), {"above": above, "below": below}


if __name__ == "__main__":
    main("parameters", build)
