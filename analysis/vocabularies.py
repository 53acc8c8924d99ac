"""What does a draft with another tokenizer accept, restricted to the shared tokens or matched as text?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from specbench.reports import Report, Strong, Table, Text
from specbench.reports.cells import NONE, interval, number, plain
from specbench.reports.text import section
from specbench.reports.varying import varying, with_sampling

from .command import main
from .decoding import setting, where_it_ran
from .folder import read_rows, report_of

QUESTION = """\
A draft whose tokenizer is not the target's can be restricted to the tokens that both have (drafter model), or write
text that is read in the target's tokens (drafter strings). How much does each accept, beside a draft of the target's
own vocabulary?"""
NOTE = """\
Shared tokens: how many of the target's tokens the draft has; all where the tokenizers are the same. Shared mass: the
target's probability of these, mean over emitted positions, which bounds what a restricted draft can accept of one
token. Overlap: mean of sum min(p, q), the chance that one drafted token is accepted; a draft of text has no q.
Acceptance length: accepted + 1, a step. Brackets hold 95% intervals, by bootstrap over prompts; for speedups by the
scatter of batches and rounds."""
SETTINGS = ["temperature", "draft", "drafter"]
NAMES = {"model": "restricted", "strings": "as text"}


def build(run_dir: Path) -> Report:
    """The report of a run.

    Raises:
        ConfigError: a folder without results of this experiment.
    """
    rows = read_rows(run_dir, "draft", "drafter", "temperature", "acceptance_length")
    rows = rows.sort_values(["temperature", "job"], kind="stable", ignore_index=True)
    caption = f"Acceptance by draft and way of drafting. {setting(rows)}"
    shown = Table("table", table(with_sampling(rows)), rows, caption, NOTE, left=("draft", "drafter"))
    sections = [section("Result", *findings(rows)), section("Table", shown), where_it_ran(rows)]
    return report_of(run_dir, "vocabularies", "Different vocabularies", QUESTION, sections)


def table(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of with_sampling as text."""
    beside = varying(rows, *SETTINGS)
    return pd.DataFrame([_line(row, beside) for _, row in rows.iterrows()])


def _line(row: pd.Series, beside: Sequence[str]) -> dict[str, str]:
    other = pd.notna(row["shared_mass"])
    return {
        "temperature": plain(row["temperature"]),
        "draft": row["draft"],
        "drafter": row["drafter"],
        **{name: plain(row[name]) for name in beside},
        "shared tokens": plain(row["shared_tokens"]) if other else "all",
        "shared mass": interval(row, "shared_mass") if other else NONE,
        "overlap": interval(row, "overlap"),
        "acceptance rate": interval(row, "acceptance_rate"),
        "acceptance length": interval(row, "acceptance_length"),
        "tokens/s": number(row["tokens_per_second"], ".1f"),
        "speedup": interval(row, "speedup"),
    }


def findings(rows: pd.DataFrame) -> list[Text]:
    """For each temperature the way of drafting that accepts most of a draft with another vocabulary."""
    found: list[Text] = []
    for temperature, group in rows.groupby("temperature", sort=True):
        others = group[group["shared_mass"].notna()]
        if others.empty:
            continue
        best = others.loc[others["acceptance_length"].idxmax()]
        text = (
            f"At temperature {plain(temperature)}, of the drafts with a vocabulary of their own, {best['draft']} "
            f"{NAMES.get(best['drafter'], best['drafter'])} has the greatest acceptance length, ",
            Strong(interval(best, "acceptance_length")),
        )
        same = group[group["shared_mass"].isna()]
        if same.empty:
            found.append((*text, "."))
            continue
        usual = same.loc[same["acceptance_length"].idxmax()]
        found.append((*text, f"; with the target's vocabulary it is {interval(usual, 'acceptance_length')}."))
    return found or ["No draft of this run has a vocabulary of its own."]


if __name__ == "__main__":
    main("vocabularies", build)
