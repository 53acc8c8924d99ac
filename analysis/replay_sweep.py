"""Does replaying one recorded pass say what decoding finds? Acceptance, intervals and time of both."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from specbench.metrics.columns import Column, columns_of, frame_of, typed
from specbench.metrics.intervals import columns
from specbench.replay.agreement import agreement, joint_p_value
from specbench.replay.policies import frontier, gain_over_fixed
from specbench.replay.renewal import replay
from specbench.replay.summary import POINTS, REPLAY, TIMINGS, PointRow, ReplayRow, by_prompt, policy_rows
from specbench.replay.trace import TRACE, read_trace
from specbench.reports import Report, Table
from specbench.reports.cells import Run, file_name, interval, number
from specbench.reports.plots import replay as plots
from specbench.rules import BLOCK, TOKEN, replayable

from .command import main
from .folder import read_rows, read_table
from .page import page

LEVEL = 1e-3
FIXED = (1, 2, 3, 4, 5, 6, 8, 12, 16)


@dataclass(frozen=True, kw_only=True)
class DecodedRow:
    """A decoded setting beside what replaying expects of it.

    Attributes:
        replayed: the acceptance length of the job's trace.
        acceptance_length: decoded.
        same_text: acceptance length that is expected of the decoded texts.
        width_ratio: the width of the interval of acceptance_length over the width of same_text's.
        difference_p, same_text_p: p-values of TESTS; None if not tested.
    """

    rule: str
    temperature: float
    gamma: int
    replayed: float
    acceptance_length: float | None
    acceptance_length_low: float | None
    acceptance_length_high: float | None
    same_text: float | None
    same_text_low: float | None
    same_text_high: float | None
    width_ratio: float | None
    difference_p: float | None
    same_text_p: float | None


Decoded, Point, Replayed = columns_of(DecodedRow), columns_of(PointRow), columns_of(ReplayRow)
TESTS: dict[Column, str] = {
    Decoded.difference_p: "decoded lengths against the replay of independent texts",
    Decoded.same_text_p: "steps taken against their expectation given the decoded text",
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
    replayed = read_table(run_dir, REPLAY, rows, [Run.temperature])
    timings = read_table(run_dir, TIMINGS, rows)
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
        points[Decoded.rule],
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
    for temperature, jobs in rows.groupby(Run.temperature):
        trace, lines, gains = read_trace(run_dir / str(jobs[Run.job].iloc[0]) / TRACE), [], []
        for info in replayable():
            points = frontier(trace, info, FIXED)
            lines += policy_rows(trace, info.name, points)
            for kind in ("probability", "entropy"):
                if gain := gain_over_fixed(points, kind):
                    gains.append(Gain(*gain, rule=info.title, kind=kind))
        text = f"{temperature:g}"
        yield text, f"policies_at_T_{file_name(text)}", pd.DataFrame(lines), gains


def compared(run_dir: Path, rows: pd.DataFrame) -> pd.DataFrame:
    """DecodedRow of each decoded setting."""
    texts = read_table(run_dir, POINTS, rows, [Run.temperature])
    replayed = read_table(run_dir, REPLAY, rows).set_index([Run.job, Replayed.rule, Replayed.gamma])
    lines = []
    for key, decoded in texts.groupby([Run.job, Point.rule]):
        job, rule = key  # ty: ignore[not-iterable]
        gammas = sorted(decoded[Point.gamma].unique().tolist())
        # A rule that is not registered was replayed by the run; here its name is all that is known of it.
        is_replayable = rule in [info.name for info in replayable()]
        independent = by_gamma(run_dir / str(job) / TRACE, str(rule), gammas) if is_replayable else {}
        for gamma in gammas:
            result = agreement(decoded[decoded[Point.gamma] == gamma], independent.get(gamma))
            lengths: Any = columns("acceptance_length", result.decoded) | columns("same_text", result.same_text)
            line = DecodedRow(
                rule=rule,
                temperature=float(decoded[Run.temperature].iloc[0]),
                gamma=gamma,
                replayed=float(replayed.loc[(job, rule, gamma), Replayed.acceptance_length]),
                **lengths,
                width_ratio=result.width_ratio,
                difference_p=result.difference_p,
                same_text_p=result.same_text_p,
            )
            lines.append(line)
    order: list[Column] = [Decoded.rule, Decoded.temperature, Decoded.gamma]
    return frame_of(lines, DecodedRow).sort_values(order, ignore_index=True)


def by_gamma(path: Path, rule: str, gammas: list[int]) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    """Tokens and expected steps of a trace, by prompt, for each draft length."""
    trace = read_trace(path)
    tokens, steps = by_prompt(trace, replay(trace, rule, gammas))
    return {gamma: (tokens, steps[:, i]) for i, gamma in enumerate(gammas)}


def rendered(points: pd.DataFrame) -> pd.DataFrame:
    """The comparison as text."""
    return pd.DataFrame(
        {
            "rule": row.rule,
            "T": f"{row.temperature:g}",
            "gamma": str(row.gamma),
            "replayed": f"{row.replayed:.3f}",
            "decoded": interval(row, Decoded.acceptance_length, ".3f"),
            "same text": interval(row, Decoded.same_text, ".3f"),
            "width": number(row.width_ratio),
            "p, independent": number(row.difference_p, ".3f"),
            "p, same text": number(row.same_text_p, ".3f"),
        }
        for row in typed(points, DecodedRow)
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
    rules = points[Decoded.rule]
    copies = (rules == BLOCK.name) & (points[Decoded.gamma] == 1) & (rules == TOKEN.name).any()
    return points.loc[~copies, Decoded.width_ratio].dropna()


if __name__ == "__main__":
    main("replay_sweep", build)
