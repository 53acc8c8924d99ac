"""The columns of speed in a run's row, from its timed rounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specbench.decoding.step_result import PHASES
from specbench.metrics.intervals import columns
from specbench.metrics.speed import speed_of
from specbench.protocols.rounds import Timed, TimedRounds


def speed_fields(timed: TimedRounds) -> dict[str, Any]:
    """RunRow's columns of speed, and of what the time of a step is made of: seconds of feeding prompts, which are no
    step's, each group's steps, and how many requests were in a step.

    Phases and prompts are over all rounds; the row has the share of them that its own seconds are of all rounds'.
    """
    speed, times = speed_of(timed.times), timed.times
    phases, (plain_prompts, prompts) = timed.phases, timed.prompts
    seconds, plain_seconds = float(speed.seconds.sum()), float(speed.plain_seconds.sum())
    tokens, plain_tokens = int(speed.tokens.sum()), int(speed.plain_tokens.sum())
    share, plain_share = seconds / float(times.seconds.sum()), plain_seconds / float(times.plain_seconds.sum())
    plain_groups, groups = zip(*timed.first, strict=True)
    return {
        **timed.columns,
        "seconds": seconds,
        "tokens_per_second": tokens / seconds,
        "plain_tokens": plain_tokens,
        "plain_seconds": plain_seconds,
        "plain_tokens_per_second": plain_tokens / plain_seconds,
        **columns("speedup", speed.speedup),
        **{f"seconds_{phase}": share * phases[phase] for phase in PHASES},
        "seconds_rest": seconds - share * sum(phases.values()),
        "rounds": len(times.seconds),
        "round_error": speed.round_error,
        "plain_round_error": speed.plain_round_error,
        "batch_tokens": speed.tokens.astype(int).tolist(),
        "batch_seconds": speed.seconds.tolist(),
        "batch_plain_tokens": speed.plain_tokens.astype(int).tolist(),
        "batch_plain_seconds": speed.plain_seconds.tolist(),
        **vars(timed.disturbance),
        "differing_texts": timed.differing,
        "seconds_prompts": share * prompts,
        "plain_seconds_prompts": plain_share * plain_prompts,
        "batch_steps": [group.steps for group in groups],
        "batch_plain_steps": [group.steps for group in plain_groups],
        "requests_per_step": requests_per_step(groups),
        "plain_requests_per_step": requests_per_step(plain_groups),
    }


def requests_per_step(groups: Sequence[Timed]) -> float:
    """How many requests a step advanced, on average: batch_size if the batch was full to the end."""
    return sum(len(c.steps) for group in groups for c in group.completions) / sum(group.steps for group in groups)
