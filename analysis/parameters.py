"""What does each sampling parameter do to acceptance?"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd

from specbench.core.sampling_params import DEFAULTS
from specbench.metrics.columns import typed
from specbench.metrics.run_row import COLUMNS_OF, COVERED, SETTINGS, RunRow
from specbench.metrics.run_settings import SAMPLER, as_text, distinguishing_columns, sampling_of
from specbench.reports import Report, Table, cells
from specbench.reports.cells import Run, plain
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
    results = read_rows(run_dir, Run.sampler, Run.acceptance_length)
    varied = settings(results)
    results[Run.series] = labels(results, varied)  # what sentences and the figure call a row
    bases = results[Run.series][own_bases(results)].tolist()
    shown = {
        "table": Table("table", table(results, varied), results.drop(columns=Run.series), left=("sampler", "asks for")),
        **latency(results, [Run.series]),
        "acceptance_by_sampler": plots.acceptance_by_sampler(results, bases),
    }
    comparisons = list(compared(results, varied))
    return page(run_dir, results, "parameters", shown, comparisons=comparisons, bases=bases)


def settings(results: pd.DataFrame) -> list[str]:
    """The columns in which rows differ, sampling apart: all of that is in what a row asks for."""
    columns = {Run.draft_temperature, *COLUMNS_OF["sampler"]}
    return [name for name in distinguishing_columns(results, *columns.intersection(results)) if name != Run.job]


def labels(results: pd.DataFrame, varied: Sequence[str] = ()) -> list[str]:
    """What each row is called: its sampler, the temperatures and settings in which rows differ; all that it asks for,
    if another row has that name too."""
    runs, several = typed(results, RunRow), results[Run.temperature].nunique() > 1
    named = []
    for run in runs:
        at = f", T={plain(run.temperature)}" if several else ""
        draft = "" if run.draft_temperature is None else f", drafts at {run.draft_temperature:g}"
        others = "".join(f", {name} {plain(getattr(run, name))}" for name in varied)
        named.append(f"{run.sampler}{at}{draft}{others}")
    return [
        f"{name} ({parameters_of(run)})" if named.count(name) > 1 else name
        for name, run in zip(named, runs, strict=True)
    ]


def own_bases(results: pd.DataFrame) -> pd.Series:
    """Which rows ask for nothing but a temperature, which drafts share."""
    alone = [
        run.sampler == BASE
        and run.draft_temperature in (None, run.temperature)
        and set(sampling_of(run)) <= {Run.temperature}
        for run in typed(results, RunRow)
    ]
    return pd.Series(alone, results.index, dtype=bool)


def table(results: pd.DataFrame, varied: Sequence[str]) -> pd.DataFrame:
    """The rows as text."""
    rows = results.assign(**{"asks for": list(map(parameters_of, typed(results, RunRow)))})
    measured = ("overlap", "acceptance rate", "acceptance length", "check TV / q99", "p")
    return cells.table(rows, ["sampler", "asks for", *varied, *measured])


def parameters_of(run: RunRow) -> str:
    """The parameters of a run that are not off."""
    numbers = {name: value for name, off in OFF.items() if (value := getattr(run, name)) not in (None, off)}
    words = [f"T={plain(run.temperature)}", *(f"{name}={value:g}" for name, value in numbers.items())]
    if run.draft_temperature is not None:
        words.append(f"draft T={run.draft_temperature:g}")
    rules = json.loads(run.token_rules) if run.token_rules else {}
    words += [f"{name}={json.dumps(value)}" for name, value in rules.items()]
    words += [f"{kind}={text}" for kind, text in structure(run).items()]
    columns = {STRUCTURE, *(path.removeprefix(SAMPLER) for path in COVERED)}
    others = {name: value for name, value in sampling_of(run).items() if name not in columns}
    return " ".join([*words, *(f"{name}={as_text(value)}" for name, value in others.items())])


def structure(run: RunRow) -> dict[str, str]:
    """What the texts of a run have to be, by its kind; empty for anything."""
    structures = sampling_of(run).get(STRUCTURE) or {}
    return {kind: value if isinstance(value, str) else json.dumps(value) for kind, value in structures.items()}


def compared(results: pd.DataFrame, varied: Sequence[str]) -> Iterator[Comparison]:
    """Each temperature alone, its settings, and the samplers of the same temperature with an overlap above or below its
    own by intervals that do not touch.

    Args:
        varied: columns in which rows have to be alike to be compared.
    """
    rows = results[results[Run.overlap].notna()]
    alike, is_base = rows.groupby([Run.temperature, *varied], dropna=False).ngroup(), own_bases(rows)
    for place, base in rows[is_base].iterrows():
        others = rows[~is_base & (alike == alike[place])]
        if len(others):
            above = others[others[Run.overlap_low] > base[Run.overlap_high]]
            below = others[others[Run.overlap_high] < base[Run.overlap_low]]
            yield base, cells.settings(base, varied), {"above": above, "below": below}


if __name__ == "__main__":
    main("parameters", build)
