"""Do constrained texts keep to their structure, with drafts and without, and what do drafts accept?"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pandas as pd

from specbench.metrics.results import TEXTS
from specbench.reports import Report, Strong, Table, Text
from specbench.reports.cells import NONE, interval, plain
from specbench.reports.text import section
from specbench.reports.varying import SAMPLER, varying, with_sampling

from .command import main
from .decoding import setting, where_it_ran
from .folder import read_rows, read_table, report_of
from .parameters import STRUCTURE, structure

QUESTION = """\
Under a constraint only tokens may come that keep the text to its structure. Does every text keep to it, with drafts and
without? Are greedy texts the same? And what do drafts accept under it?"""
NOTE = """\
Gamma 0 is plain decoding. Ended: texts that came to their end, of all; the others were cut off by max_new_tokens. Keep
to it: of those that ended, the texts that Python's json, re or a list of choices takes, which know nothing of how the
text was made. As plain: greedy texts that are those of gamma 0. Overlap: mean of sum min(p, q) over the tokens emitted.
Acceptance length: accepted + 1, a step. Brackets hold 95% intervals by bootstrap over prompts."""
ENDED = "stop"
# What greedy texts depend on.
OF_TEXTS = ["sampler", "sampling", "pair", "target", "workload", "prompts", "max_new_tokens", "device", "dtype"]


def _parses(text: str, schema: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


JUDGES: dict[str, Callable[[str, str], bool]] = {
    "json": _parses,
    "regex": lambda text, pattern: re.fullmatch(pattern, text) is not None,
    "choice": lambda text, choices: text in json.loads(choices),
}


def build(run_dir: Path) -> Report:
    """The report of a sweep of constraints.

    Raises:
        ConfigError: a folder without results of decoding, or without its texts.
    """
    rows = read_rows(run_dir, "sampler", "acceptance_length")
    rows = rows.sort_values(["sampler", "temperature", "gamma"], ignore_index=True)
    counted = rows.join(counts(rows, read_table(run_dir, TEXTS, rows, [])))
    caption = f"Constrained texts. {setting(rows)}"
    shown = Table("table", table(counted), counted, caption, NOTE, left=("sampler",))
    sections = [section("Result", *findings(counted)), section("Table", shown), where_it_ran(rows)]
    return report_of(run_dir, "structured", "Structured outputs", QUESTION, sections)


def counts(rows: pd.DataFrame, texts: pd.DataFrame) -> pd.DataFrame:
    """Of each row how many texts there are, ended, kept to the structure, and are those of gamma 0 if greedy."""
    named = {job: own.set_index("prompt") for job, own in texts.groupby("job")}
    alike, found = rows.groupby([*OF_TEXTS, "temperature"], dropna=False).ngroup(), []
    for place, row in rows.iterrows():
        own, wanted = named[row["job"]], structure(row)
        ended = own[own["finished"] == ENDED]
        line = {"texts": len(own), "ended": len(ended), "kept": None, "as_plain": None}
        (kind, what), *_ = wanted.items() or [("", "")]
        if kind in JUDGES:
            line["kept"] = sum(JUDGES[kind](text, what) for text in ended["completion"])
        without = rows[(rows["gamma"] == 0) & (alike == alike[place])]
        if row["temperature"] == 0 and row["gamma"] > 0 and len(without):
            other = named[without["job"].iloc[0]]["completion"].reindex(own.index)
            line["as_plain"] = int((own["completion"] == other).sum())
        found.append(line)
    return pd.DataFrame(found, index=rows.index).astype({name: "Int64" for name in ("kept", "as_plain")})


def _settings(rows: pd.DataFrame) -> list[str]:
    """The columns by which rows of with_sampling are told apart. A sampler's name stands for its one structure."""
    first, wanted = ["sampler", "temperature", "gamma"], f"{SAMPLER}{STRUCTURE}"
    one = wanted in rows and rows.groupby("sampler")[wanted].nunique().max() == 1
    return [*first, *varying(rows, *first, *([wanted] if one else []))]


def table(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows as text."""
    rows = with_sampling(rows)
    settings = _settings(rows)
    return pd.DataFrame(
        [
            {
                **{name: plain(row[name]) for name in settings},
                "ended": f"{row['ended']} of {row['texts']}",
                "keep to it": _of(row["kept"], row["ended"]),
                "as plain": _of(row["as_plain"], row["texts"]),
                "overlap": interval(row, "overlap") if row["gamma"] else NONE,
                "acceptance rate": interval(row, "acceptance_rate"),
                "acceptance length": interval(row, "acceptance_length") if row["gamma"] else NONE,
            }
            for _, row in rows.iterrows()
        ]
    )


def _of(count: object, total: int) -> str:
    return NONE if pd.isna(count) else f"{count} of {total}"


def findings(rows: pd.DataFrame) -> list[Text]:
    """Whether all texts keep to their structure, and whether drafts change greedy ones."""
    held, greedy = rows[rows["kept"].notna()], rows[rows["as_plain"].notna()]
    found: list[Text] = []
    if len(held):
        text = f"{held['kept'].sum()} of {held['ended'].sum()} texts that ended keep to their structure"
        cut = held["texts"].sum() - held["ended"].sum()
        found.append((Strong(text), f"; max_new_tokens cut off {cut} others."))
    if len(greedy):
        text = f"{greedy['as_plain'].sum()} of {greedy['texts'].sum()} greedy texts are those of plain decoding"
        found.append((Strong(text), "."))
    return found or ["No run of this sweep has a constraint."]


if __name__ == "__main__":
    main("structured", build)
