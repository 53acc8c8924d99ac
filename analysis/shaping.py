"""The table of what penalties and bans cost a verifier; part of the report of verifier_latency."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from specbench.reports import Section, Table
from specbench.reports.cells import interval
from specbench.reports.text import section

GOAL = 1.15
CAPTION = f"""\
Time from raw logits to tokens if the sampler penalises or bans tokens, over the time of the same verifier on the same
rows with nothing left to penalise or ban: it accepts and emits the same tokens. Both are of one run. Goal: at most
{GOAL} times."""


def sections(timed: pd.DataFrame, where: str) -> Iterator[Section]:
    """One section, if any case has such a sampler.

    Args:
        where: on what device, and the like, for the caption.
    """
    cases = timed[timed["times_plain"].notna()]
    if len(cases):
        shown = Table("shaping", shaping_table(cases), caption=f"{CAPTION} {where}", left=("parameters", "verifier"))
        yield section("Penalties and bans", shown)


def shaping_table(cases: pd.DataFrame) -> pd.DataFrame:
    """A line a case: with, without, their ratio, and whether it meets the goal."""
    return pd.DataFrame(
        [
            {
                "parameters": row["variant"] if row["variant"] == "base" else row["variant"].removeprefix("sampler="),
                "requests": str(row["batch_size"]),
                "verifier": row["verifier"],
                "tokens of a text": f"{row['context']:.0f}",
                "µs": interval(row, "median_us", ".1f"),
                "µs without": interval(row, "plain_us", ".1f"),
                "ratio": interval(row, "times_plain"),
                f"at most {GOAL}": verdict(row),
            }
            for _, row in cases.iterrows()
        ]
    )


def verdict(row: pd.Series) -> str:
    """By the interval of the ratio, if the two times can be compared with a goal that was set for GPUs."""
    if row["device"] == "cpu" or not row["comparable"]:
        return "not comparable"
    if row["times_plain_high"] <= GOAL:
        return "met"
    return "missed" if row["times_plain_low"] > GOAL else "open"
