"""What does each sampling parameter do to acceptance?"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from specbench.reports import Picture, Report, Table, Text, varying
from specbench.reports.cells import interval, number, plain
from specbench.reports.plots import parameters as plots
from specbench.reports.text import section

from .command import main
from .decoding import repeats, setting, where_it_ran
from .drawn_tokens import exactness
from .folder import read_rows, report_of

QUESTION = """\
Truncations, penalties, bans and constraints change the target's distribution and the draft's alike, position by
position along the draft; a draft may have a temperature of its own. What does each do to the chance that a drafted
token is accepted?"""
BASE = "temperature"  # the sampler that asks for nothing else
OFF = {
    **{"top_k": 0, "top_p": 1, "min_p": 0, "presence_penalty": 0, "frequency_penalty": 0, "repetition_penalty": 1},
    "min_tokens": 0,
}
STRUCTURE = "structured_outputs"
NOTE = """\
Overlap: mean of sum min(p, q) over the tokens emitted, the chance that one drafted token is accepted; acceptance rate:
accepted / drafted tokens; acceptance length: accepted + 1, a verification step. Brackets hold 95% intervals by
bootstrap over prompts. Each sampler has texts of its own. Check: total variation distance of drawn tokens from the
target's probabilities, beside the 99% quantile of what sampling noise alone gives; p is the share of noise at least as
far."""
FIRST = """\
The check draws first tokens of continuations, which penalties of the continuation leave alone: it cannot see them."""
ACCEPTANCE = """\
Points to the left of the dashed line are samplers under which draft and target agree less than without."""


def build(run_dir: Path) -> Report:
    """The report of a sweep of samplers, or of temperatures of target and draft.

    Raises:
        ConfigError: a folder without results.
    """
    results = read_rows(run_dir, "sampler", "acceptance_length")
    beside = settings(results)
    results["series"] = labels(results, beside)  # what sentences and the figure call a row
    shown = Table(
        "table",
        table(results, beside),
        results.drop(columns="series"),
        f"Acceptance by sampler. {setting(results)}",
        NOTE,
        left=("sampler", "asks for"),
    )
    question = "Under which parameters do draft and target agree?"
    bases = results["series"][own_bases(results)].tolist()
    figure = plots.acceptance_by_sampler(results, bases)
    picture = Picture("acceptance_by_sampler", figure, question, ACCEPTANCE if len(bases) == 1 else "")
    sections = [
        section("Result", *compared(results, beside), repeats(results), exactness(results), FIRST),
        section("Table", shown),
        section("Figures", picture),
        where_it_ran(results),
    ]
    return report_of(run_dir, "parameters", "Sampling parameters", QUESTION, sections)


def settings(results: pd.DataFrame) -> list[str]:
    """The columns in which rows differ, sampling apart: all of that is in what a row asks for."""
    asks = {"sampler", "sampling", "draft_temperature", "token_rules", *varying.OWN_COLUMNS}
    return [name for name in varying.varying(results, *asks.intersection(results)) if name != "job"]


def labels(results: pd.DataFrame, beside: Sequence[str] = ()) -> list[str]:
    """What each row is called: its sampler, the temperatures and settings in which rows differ; all that it asks for,
    if another row has that name too."""
    several = results["temperature"].nunique() > 1
    named = []
    for _, row in results.iterrows():
        at = f", T={row['temperature']:g}" if several else ""
        own = "" if pd.isna(row["draft_temperature"]) else f", drafts at {row['draft_temperature']:g}"
        others = "".join(f", {name} {plain(row[name])}" for name in beside)
        named.append(f"{row['sampler']}{at}{own}{others}")
    asks = [f"{name} ({asked(row)})" for name, (_, row) in zip(named, results.iterrows(), strict=True)]
    return [ask if named.count(name) > 1 else name for name, ask in zip(named, asks, strict=True)]


def own_bases(results: pd.DataFrame) -> pd.Series:
    """Which rows ask for nothing but a temperature, which drafts share."""
    shared = results["draft_temperature"].isna() | (results["draft_temperature"] == results["temperature"])
    alone = results.apply(lambda row: not set(varying.asked(row)) - {"temperature"}, axis=1)
    return (results["sampler"] == BASE) & shared & alone


def table(results: pd.DataFrame, beside: Sequence[str]) -> pd.DataFrame:
    """The rows as text."""
    return pd.DataFrame(
        [
            {
                "sampler": row["sampler"],
                "asks for": asked(row),
                **{name: plain(row[name]) for name in beside},
                **{name.replace("_", " "): interval(row, name) for name in ("overlap", "acceptance_rate")},
                "acceptance length": interval(row, "acceptance_length"),
                "check TV / q99": f"{number(row['check_tv'], '.3f')} / {number(row['check_tv_noise_q99'], '.3f')}",
                "p": number(row["check_p_value"], ".3f"),
            }
            for _, row in results.iterrows()
        ]
    )


def asked(row: pd.Series) -> str:
    """The parameters of a row that are not off."""
    numbers = {name: row[name] for name, off in OFF.items() if pd.notna(row[name]) and row[name] != off}
    words = [f"T={row['temperature']:g}", *(f"{name}={value:g}" for name, value in numbers.items())]
    if pd.notna(row["draft_temperature"]):
        words.append(f"draft T={row['draft_temperature']:g}")
    rules = json.loads(row["token_rules"]) if isinstance(row["token_rules"], str) and row["token_rules"] else {}
    words += [f"{name}={json.dumps(value)}" for name, value in rules.items()]
    words += [f"{kind}={text}" for kind, text in structure(row).items()]
    told = {*varying.OWN_COLUMNS, STRUCTURE}
    others = {name: value for name, value in varying.asked(row).items() if name not in told}
    return " ".join([*words, *(f"{name}={varying.as_text(value)}" for name, value in others.items())])


def structure(row: pd.Series) -> dict[str, str]:
    """What the texts of a row have to be, by its kind; empty for anything."""
    given = json.loads(row["sampling"]) if isinstance(row["sampling"], str) else {}
    wanted = given.get(STRUCTURE) or {}
    return {kind: value if isinstance(value, str) else json.dumps(value) for kind, value in wanted.items()}


def compared(results: pd.DataFrame, beside: Sequence[str]) -> list[Text]:
    """Which rows have an overlap above or below that of a temperature alone, by intervals that do not touch.

    Args:
        beside: columns in which rows have to be alike to be compared.
    """
    known = results[results["overlap"].notna()]
    sentences = []
    for place, own in known[own_bases(known)].iterrows():
        alike = known.groupby(["temperature", *beside], dropna=False).ngroup()
        others = known[~own_bases(known) & (alike == alike[place])]
        if others.empty:
            continue
        for word, rows in (
            ("above", others[others["overlap_low"] > own["overlap_high"]]),
            ("below", others[others["overlap_high"] < own["overlap_low"]]),
        ):
            named = ", ".join(f"{row['series']} {interval(row, 'overlap')}" for _, row in rows.iterrows())
            at = "".join(f", {name} {plain(own[name])}" for name in beside)
            whose = f"that of temperature {own['temperature']:g} alone{at}, {interval(own, 'overlap')}"
            sentences.append(f"Overlap {word} {whose}, by intervals that do not touch: {named or 'none'}.")
    return sentences


if __name__ == "__main__":
    main("parameters", build)
