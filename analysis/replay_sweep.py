"""Does replaying one recorded pass say what decoding finds? Acceptance, intervals and time of both."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from specbench.metrics.intervals import columns
from specbench.replay.agreement import agreement, joint_p_value
from specbench.replay.policies import frontier, gain_over_fixed
from specbench.replay.renewal import replay
from specbench.replay.summary import REPLAY, by_prompt, policy_rows
from specbench.replay.trace import TRACE, read_trace
from specbench.reports import Report, Table, cells
from specbench.reports.cells import file_name, interval, number
from specbench.reports.plots import replay as plots
from specbench.rules import BLOCK, TOKEN, replayable

from .command import main
from .folder import read_rows, read_table
from .page import page

LEVEL = 1e-3
FIXED = (1, 2, 3, 4, 5, 6, 8, 12, 16)
TESTS = {
    "difference_p": "decoded lengths against the replay of independent texts",
    "same_text_p": "steps taken against their expectation given the decoded text",
}


class Gain(NamedTuple):
    """What the best threshold of a stopping policy gains over a fixed gamma of equal draft."""

    tokens: float  # a step
    threshold: float
    rule: str
    kind: str


def build(run_dir: Path) -> Report:
    """The report of a run."""
    rows = read_rows(run_dir)
    points = compared(run_dir, rows)
    replayed = read_table(run_dir, REPLAY, rows, ["temperature"])
    timings = read_table(run_dir, "timings.parquet", rows, ["temperature", "verifier"])
    tried = list(policies(run_dir, rows))
    shown = {
        "table": Table("table", rendered(points), points, left=("rule",)),
        "replay_against_decoding": plots.against_decoding(replayed, points),
        **{name: plots.policy_frontier(lines) for _, name, lines, _ in tried},
    }
    return page(
        run_dir,
        rows,
        "replay_sweep",
        shown,
        points["rule"],
        tests=joint_tests(points),
        level=LEVEL,
        ratio=width_ratios(points),
        timings=timings,
        settings=len(replayed),
        policies=[(temperature, name, gains) for temperature, name, _, gains in tried],
    )


def policies(run_dir: Path, rows: pd.DataFrame) -> Iterator[tuple[str, str, pd.DataFrame, list[Gain]]]:
    """Of each temperature the name of its figure, the frontier of stopping policies under both rules, of its first
    trace, and what they gain over a fixed gamma of equal draft."""
    for temperature, jobs in rows.groupby("temperature"):
        trace, lines, gains = read_trace(run_dir / str(jobs["job"].iloc[0]) / TRACE), [], []
        for info in replayable():
            points = frontier(trace, info, FIXED)
            lines += policy_rows(trace, info.name, points)
            for kind in ("probability", "entropy"):
                if gain := gain_over_fixed(points, kind):
                    gains.append(Gain(*gain, rule=info.title, kind=kind))
        text = f"{temperature:g}"
        yield text, f"policies_at_T_{file_name(text)}", pd.DataFrame(lines), gains


def compared(run_dir: Path, rows: pd.DataFrame) -> pd.DataFrame:
    """One line a decoded setting: decoded, replayed and same-text lengths, p-values, widths."""
    texts = read_table(run_dir, "points.parquet", rows, ["temperature", "verifier"])
    lengths = read_table(run_dir, REPLAY, rows, []).set_index(["job", "rule", "gamma"])["acceptance_length"]
    lines = []
    for key, decoded in texts.groupby(["job", "rule"]):
        job, rule = key  # ty: ignore[not-iterable]
        gammas = sorted(decoded["gamma"].unique().tolist())
        # A rule that is not registered was replayed by the run; here its name is all that is known of it.
        is_replayable = rule in [info.name for info in replayable()]
        independent = by_gamma(run_dir / str(job) / TRACE, str(rule), gammas) if is_replayable else {}
        for gamma in gammas:
            result = agreement(decoded[decoded["gamma"] == gamma], independent.get(gamma))
            line = {
                "rule": rule,
                "temperature": decoded["temperature"].iloc[0],
                "gamma": gamma,
                "replayed": float(lengths.loc[job, rule, gamma]),
                **columns("acceptance_length", result.decoded),
                **columns("same_text", result.same_text),
                "width_ratio": result.width_ratio,
                "difference_p": result.difference_p,
                "same_text_p": result.same_text_p,
            }
            lines.append(line)
    return pd.DataFrame(lines).sort_values(["rule", "temperature", "gamma"], ignore_index=True)


def by_gamma(path: Path, rule: str, gammas: list[int]) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    """Tokens and expected steps of a trace, by prompt, for each draft length."""
    trace = read_trace(path)
    tokens, steps = by_prompt(trace, replay(trace, rule, gammas))
    return {gamma: (tokens, steps[:, i]) for i, gamma in enumerate(gammas)}


def rendered(points: pd.DataFrame) -> pd.DataFrame:
    """The comparison as text."""
    return cells.shown(
        points,
        lambda row: {
            "rule": row["rule"],
            "T": f"{row['temperature']:g}",
            "gamma": str(row["gamma"]),
            "replayed": f"{row['replayed']:.3f}",
            "decoded": interval(row, "acceptance_length", ".3f"),
            "same text": interval(row, "same_text", ".3f"),
            "width": number(row["width_ratio"]),
            "p, independent": number(row["difference_p"], ".3f"),
            "p, same text": number(row["same_text_p"], ".3f"),
        },
    )


def joint_tests(points: pd.DataFrame) -> list[tuple[str, int, float]]:
    """Both tests: over how many settings, and their joint p-value; NaN where none is known."""
    p_values = {name: points[name].dropna().tolist() for name in TESTS}
    return [
        (what, len(p_values[name]), joint_p_value(p_values[name]) if p_values[name] else math.nan)
        for name, what in TESTS.items()
    ]


def width_ratios(points: pd.DataFrame) -> pd.Series:
    """How many times wider decoding's intervals are; the block rule's gamma 1 is the token rule's again."""
    rules = points["rule"]
    copies = (rules == BLOCK.name) & (points["gamma"] == 1) & (rules == TOKEN.name).any()
    return points.loc[~copies, "width_ratio"].dropna()


if __name__ == "__main__":
    main("replay_sweep", build)
