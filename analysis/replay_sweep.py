"""Does replaying one recorded pass say what decoding finds? Acceptance, intervals and time of both."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from specbench.replay.agreement import Agreement, agreement, joint_p_value
from specbench.replay.policies import frontier, gain_over_fixed
from specbench.replay.renewal import replay
from specbench.replay.summary import REPLAY, by_prompt, policy_rows
from specbench.replay.trace import TRACE, read_trace
from specbench.reports import Picture, Report, Strong, Table, Text
from specbench.reports.cells import file_name, interval, number
from specbench.reports.plots import replay as plots
from specbench.reports.text import join, section
from specbench.rules.cards import BLOCK, CARDS, TOKEN

from .command import main
from .decoding import setting, where_it_ran
from .folder import read_rows, read_table, report_of

LEVEL = 1e-3
FIXED = (1, 2, 3, 4, 5, 6, 8, 12, 16)
QUESTION = """\
One pass of both models over texts that the target sampled gives the acceptance of every draft length under both rules,
without accept/reject noise. Is that what decoding finds, how much narrower are its intervals, and what does it save?"""
NOTE = """\
Tokens a verification step, with 95% intervals by bootstrap over prompts. Replayed: from texts recorded with seeds of
their own. Decoded: the run itself. Same text: the decoded texts, replayed, so that what differs is the accept/reject
noise alone; width is the decoded interval's width over the replayed one's on those same tokens. p, independent: the
decoded length against the replayed one, a dash for rules from outside of this tree; p, same text: steps taken against
their expectation given the text."""
LENGTHS = """\
Lines are replayed with bands of 95%, points decoded with bars of 95%. Both have the noise of their texts; the points
have that of accepting and rejecting as well."""
WIDTHS = """\
Above 1, decoding's interval is wider than the replay's on the very same texts. Squared, it is the factor of prompts
that decoding needs for the same precision."""


POLICIES = """\
What stopping a draft early would buy, by what the draft knows of itself: tokens emitted against tokens drafted, each a
step. A point above the dashed line (fixed) beats every fixed draft length of the same cost. Drafted tokens of a policy
are estimated (specbench/replay/policies.py), emitted ones are exact given the texts."""


def build(run_dir: Path) -> Report:
    """The report of a run.

    Raises:
        ConfigError: a folder without results of this experiment.
    """
    rows = read_rows(run_dir)
    points = compared(run_dir, rows)
    replayed = read_table(run_dir, REPLAY, rows, ["temperature"])
    timings = read_table(run_dir, "timings.parquet", rows, ["temperature", "verifier"])
    tried = policies(run_dir, rows)
    findings = [agrees(points), widths(points), saved(timings, replayed), *(text for _, text in tried.values())]
    caption = f"Tokens a verification step, replayed and decoded. {setting(rows)}"
    shown = Table("table", rendered(points), points, caption, NOTE, left=("rule",))
    frontiers = {name: lines for name, (lines, _) in tried.items()}
    sections = [
        section("Result", *findings),
        section("Table", shown),
        section("Figures", *_pictures(replayed, points, frontiers, setting(rows))),
        where_it_ran(rows),
    ]
    return report_of(run_dir, "replay_sweep", "Replay against decoding", QUESTION, sections, points["rule"])


def policies(run_dir: Path, rows: pd.DataFrame) -> dict[str, tuple[pd.DataFrame, str]]:
    """For each temperature the frontier of stopping policies under both rules, of its first trace, and its gist."""
    found = {}
    for temperature, jobs in rows.groupby("temperature"):
        trace, lines, words = read_trace(run_dir / str(jobs["job"].iloc[0]) / TRACE), [], []
        for card in CARDS.values():
            points = frontier(trace, card, FIXED)
            lines += policy_rows(trace, card.name, points)
            for kind in ("probability", "entropy"):
                if gain := gain_over_fixed(points, kind):
                    words.append(f"{gain[0]:+.2f} ({card.title}, by {kind}, threshold {gain[1]:g})")
        text = f"Stopping early at T = {temperature:g}, tokens a step beyond a fixed gamma of equal draft, at best: "
        found[f"{temperature:g}"] = pd.DataFrame(lines), text + (", ".join(words) or "nothing to compare") + "."
    return found


def compared(run_dir: Path, rows: pd.DataFrame) -> pd.DataFrame:
    """One line a decoded setting: decoded, replayed and same-text lengths, p-values, widths."""
    texts = read_table(run_dir, "points.parquet", rows, ["temperature", "verifier"])
    lengths = read_table(run_dir, REPLAY, rows, []).set_index(["job", "rule", "gamma"])["acceptance_length"]
    lines = []
    for key, decoded in texts.groupby(["job", "rule"]):
        job, rule = key  # ty: ignore[not-iterable]
        gammas = sorted(decoded["gamma"].unique().tolist())
        # A rule from outside of the tree was replayed by the run; here its name is all that is known of it.
        independent = by_gamma(run_dir / str(job) / TRACE, str(rule), gammas) if rule in CARDS else {}
        for gamma in gammas:
            found = agreement(decoded[decoded["gamma"] == gamma], independent.get(gamma))
            about = {"rule": rule, "temperature": decoded["temperature"].iloc[0], "gamma": gamma}
            lines.append({**about, **_columns(found, float(lengths.loc[job, rule, gamma]))})
    return pd.DataFrame(lines).sort_values(["rule", "temperature", "gamma"], ignore_index=True)


def by_gamma(path: Path, rule: str, gammas: list[int]) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    """Tokens and expected steps of a trace, by prompt, for each draft length."""
    trace = read_trace(path)
    tokens, steps = by_prompt(trace, replay(trace, rule, gammas))
    return {gamma: (tokens, steps[:, i]) for i, gamma in enumerate(gammas)}


def _columns(found: Agreement, replayed: float) -> dict[str, Any]:
    def named(name: str, values: dict[str, float]) -> dict[str, float]:
        return {name if key == "value" else f"{name}_{key}": value for key, value in values.items()}

    return {
        "replayed": replayed,
        **named("acceptance_length", asdict(found.decoded)),
        **named("same_text", asdict(found.same_text)),
        "width_ratio": found.width_ratio,
        "difference_p": found.difference_p,
        "same_text_p": found.same_text_p,
    }


def rendered(points: pd.DataFrame) -> pd.DataFrame:
    """The comparison as text."""
    return pd.DataFrame(
        [
            {
                "rule": row["rule"],
                "T": f"{row['temperature']:g}",
                "gamma": str(row["gamma"]),
                "replayed": f"{row['replayed']:.3f}",
                "decoded": interval(row, "acceptance_length", ".3f"),
                "same text": interval(row, "same_text", ".3f"),
                "width": number(row["width_ratio"]),
                "p, independent": number(row["difference_p"], ".3f"),
                "p, same text": number(row["same_text_p"], ".3f"),
            }
            for _, row in points.iterrows()
        ]
    )


def agrees(points: pd.DataFrame) -> Text:
    """Both joint tests in words."""
    sentences: list[Text] = []
    for name, words in (
        ("difference_p", "decoded lengths against the replay of independent texts"),
        ("same_text_p", "steps taken against their expectation given the decoded text"),
    ):
        known = points[name].dropna()
        if known.empty:
            sentences.append(f"{words}: not known of rules from outside of this tree, nor of one prompt")
            continue
        joint = joint_p_value(known.tolist())
        verdict = "agree" if joint >= LEVEL else Strong("differ")
        sentences.append((f"{words}: they ", verdict, f", joint p-value {joint:.3g} over {len(known)} settings"))
    about = f"Replay and decoding, two tests at level {LEVEL:g} (Bonferroni over all settings): "
    return join([about, join(sentences, between="; "), "."], between="")


def widths(points: pd.DataFrame) -> str:
    """How much narrower the replay's intervals are, in words; the block rule's gamma 1 is the token rule's again."""
    rules = points["rule"]
    copies = (rules == BLOCK.name) & (points["gamma"] == 1) & (rules == TOKEN.name).any()
    ratio = points.loc[~copies, "width_ratio"].dropna()
    if ratio.empty:
        return "One prompt gives no intervals to compare."
    return (
        f"On the same texts decoding's interval is {ratio.median():.2f} times as wide as the replay's (median; "
        f"{ratio.min():.2f} to {ratio.max():.2f}), which is what {ratio.median() ** 2:.1f} times the prompts would buy."
    )


def saved(timings: pd.DataFrame, replayed: pd.DataFrame) -> str:
    """Time of recording and replaying against decoding, in words; only settings that were both are counted."""
    seconds = timings.groupby("what")["seconds"].sum()
    decoded = timings[timings["what"] == "decode"].groupby("job")["gamma"].nunique().sum()
    count = len(replayed)
    recording = seconds["sampling"] + seconds["scoring"]
    share = (recording + seconds["replay"]) / seconds["decode"]
    return (
        f"Recording took {recording:.1f} s ({seconds['sampling']:.1f} s of sampling and {seconds['scoring']:.1f} s of "
        f"scoring) and replaying {count} settings {seconds['replay']:.2f} s, against {seconds['decode']:.1f} s of "
        f"decoding {decoded} of them: a share of {share:.3f}. Every job recorded a trace of its own, though one trace "
        "serves both rules."
    )


def _pictures(
    replayed: pd.DataFrame, points: pd.DataFrame, tried: dict[str, pd.DataFrame], where: str
) -> Iterator[Picture]:
    figure, question = plots.against_decoding(replayed, points), "Does the replay say what decoding finds?"
    yield Picture("replay_against_decoding", figure, question, f"{LENGTHS} {where}")
    question = "How much wider are decoding's intervals?"
    yield Picture("interval_widths", plots.interval_widths(points), question, f"{WIDTHS} {where}")
    for temperature, lines in tried.items():
        question = f"What would stopping a draft early buy at temperature {temperature}?"
        name = f"policies_at_T_{file_name(temperature)}"
        yield Picture(name, plots.policy_frontier(lines), question, f"{POLICIES} {where}")


if __name__ == "__main__":
    main("replay_sweep", build)
