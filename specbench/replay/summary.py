"""Replayed counts as rows of a table, with intervals by bootstrap over prompts.

Expected values of what decoding counts, given the texts; in the terms of a step log (results.StepRow; d, a, e are
num_draft_tokens, num_accepted, num_emitted, and N the steps), where accepted means kept, k = min(a, e):

    steps, tokens, drafted     N, sum e, sum d: a decode run's columns of these names
    accepted, histogram        sum k, and the steps by k: a run's columns where no text ends within a block; what a
                               verifier accepts behind the end, a - k, is not in the text
    acceptance_length          sum e / N: a run's tokens / steps. A run's own acceptance_length is (sum a + N) / N,
                               which is larger by what was cut off behind ends of texts, at most gamma a text
    full_acceptance_length     1 + mean k where d = gamma
    acceptance_rate            sum k / sum d
    joint_rates                #{k >= i} / #{d >= i}
    conditional_rates          #{k >= i} / #{d >= i, e >= i}
    variance                   of e
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from specbench.metrics.intervals import Estimate, columns, ratios_of_sums, sums_by_unit
from specbench.replay.policies import PolicyPoint
from specbench.replay.renewal import Replayed
from specbench.replay.trace import Trace

REPLAY, POLICIES = "replay.parquet", "policies.parquet"
POINTS, TIMINGS = "points.parquet", "timings.parquet"  # of protocol=replay_check


@dataclass(frozen=True)
class ReplayRow:
    """What one draft length accepts by one rule: expected values, given the texts."""

    rule: str
    gamma: int
    acceptance_length: float
    acceptance_length_low: float | None  # None of one prompt
    acceptance_length_high: float | None
    variance: float
    full_acceptance_length: float | None
    acceptance_rate: float | None
    steps: float
    tokens: int
    histogram: list[float]
    joint_rates: list[float | None]
    conditional_rates: list[float | None]
    drafted: float
    accepted: float


@dataclass(frozen=True)
class PolicyRow:
    """What a policy of draft lengths accepts by one rule; the threshold of a fixed length is None."""

    rule: str
    policy: str
    threshold: float | None
    gamma: int
    drafted_per_step: float
    acceptance_length: float
    acceptance_length_low: float | None  # None of one prompt
    acceptance_length_high: float | None


@dataclass(frozen=True)
class PointRow:
    """A text that was decoded, and what replaying this very text expects."""

    rule: str
    gamma: int
    prompt: str
    sample: int
    tokens: int
    steps: int
    expected_steps: float
    drafted: int
    expected_drafted: float
    accepted: int  # and kept: nothing behind a stop token
    expected_accepted: float


@dataclass(frozen=True)
class TimingRow:
    """How long a part took."""

    what: str  # sampling, scoring, replay, decode
    gamma: int | None  # of decode
    tokens: int | None
    seconds: float


def by_prompt(trace: Trace, replayed: Sequence[Replayed]) -> tuple[np.ndarray, np.ndarray]:
    """tokens [prompts] and expected steps [prompts, len(replayed)]: what the bootstrap resamples.

    Samples of a prompt, and turns of a conversation, are summed first, since they are alike.
    """
    steps = [sums_by_unit(trace.conversations, result.steps) for result in replayed]
    return sums_by_unit(trace.conversations, trace.lengths), np.stack(steps, axis=1)


def lengths_with_intervals(trace: Trace, replayed: Sequence[Replayed]) -> list[Estimate]:
    """Tokens a step, with their 95% intervals."""
    return ratios_of_sums(*by_prompt(trace, replayed))


def replay_rows(trace: Trace, replayed: Sequence[Replayed]) -> list[dict[str, Any]]:
    """The columns of ReplayRow. Rates of positions that no text reached are null."""
    rows = []
    for result, length in zip(replayed, lengths_with_intervals(trace, replayed), strict=True):
        accepted, drafted = float(result.accepted.sum()), float(result.drafted.sum())
        rows.append(
            {
                "rule": result.rule,
                "gamma": result.gamma,
                **columns("acceptance_length", length),
                "variance": result.variance,
                "full_acceptance_length": _known(result.full_acceptance_length),
                "acceptance_rate": accepted / drafted if drafted > 0 else None,
                "steps": float(result.steps.sum()),
                "tokens": int(result.tokens.sum()),
                "histogram": result.histogram.tolist(),
                "joint_rates": [_known(rate) for rate in result.joint],
                "conditional_rates": [_known(rate) for rate in result.conditional],
                "drafted": drafted,
                "accepted": accepted,
            }
        )
    return rows


def policy_rows(trace: Trace, rule: str, points: Sequence[PolicyPoint]) -> list[dict[str, Any]]:
    """The columns of PolicyRow."""
    lengths = lengths_with_intervals(trace, [point.replayed for point in points])
    return [
        {
            "rule": rule,
            "policy": point.policy.kind,
            "threshold": point.policy.threshold,
            "gamma": point.policy.gamma,
            "drafted_per_step": point.drafted_per_step,
            **columns("acceptance_length", length),
        }
        for point, length in zip(points, lengths, strict=True)
    ]


def _known(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
