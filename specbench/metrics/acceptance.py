"""Acceptance metrics, from the step log alone.

The step log has one line a verification and request, with columns prompt, step, num_draft_tokens, num_accepted,
num_emitted and draft_depth (see results.StepRow). All ratios are pooled (sums over sums), as vLLM's counters are; a
mean of per-request ratios is another quantity and can rank two runs the other way round.

A draft that is a tree has several candidates at a position, of which one can be accepted. Its num_draft_tokens counts
all of them, and its draft_depth the positions. So the acceptance rate, accepted by drafted tokens, is low for a tree
however good it is; acceptance by position, and the acceptance length, mean the same for trees and chains.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from specbench.metrics.intervals import Estimate, columns, ratio_of_sums
from specbench.metrics.ratios import BY_POSITION, CONDITIONAL, JOINT, StepLog, rates_by_position


def position_estimates(steps: pd.DataFrame, gamma: int) -> tuple[list[Estimate | None], list[Estimate | None]]:
    """The joint and the conditional rates of :func:`acceptance_fields`, with intervals by bootstrap over prompts."""
    log, units = StepLog.of(steps, gamma), _units(steps).tolist()
    joint, conditional = (
        [ratio_of_sums(*map(np.asarray, BY_POSITION[formula](log, i)), units) for i in range(1, gamma + 1)]
        for formula in (JOINT, CONDITIONAL)
    )
    return joint, conditional


def _units(steps: pd.DataFrame) -> pd.Series:
    """What intervals resample: the prompt of each step; turns of a conversation are one, each continues the last."""
    return steps["conversation"].fillna(steps["prompt"]) if "conversation" in steps else steps["prompt"]


@dataclass(frozen=True)
class PromptTotals:
    """The tokens and steps of a prompt or conversation."""

    drafted: int
    accepted: int
    emitted: int
    steps: int


def totals_by_prompt(steps: pd.DataFrame) -> pd.DataFrame:
    """PromptTotals of each prompt or conversation, whose name is the index: what intervals resample."""
    return steps.groupby(_units(steps), sort=True).agg(
        drafted=("num_draft_tokens", "sum"),
        accepted=("num_accepted", "sum"),
        emitted=("num_emitted", "sum"),
        steps=("num_emitted", "size"),
    )


def acceptance_columns(totals: pd.DataFrame) -> dict[str, Any]:
    """Counts; tokens drafted a step, acceptance rate and acceptance length with their intervals: columns of a row."""
    steps, drafted, accepted = (totals[name].to_numpy() for name in ("steps", "drafted", "accepted"))
    return {
        "tokens": int(totals["emitted"].sum()),
        "steps": int(steps.sum()),
        "drafted": int(drafted.sum()),
        "accepted": int(accepted.sum()),
        **columns("drafted_per_step", ratio_of_sums(drafted, steps)),
        **columns("acceptance_rate", ratio_of_sums(accepted, drafted)),
        **columns("acceptance_length", ratio_of_sums(accepted + steps, steps)),
    }


def acceptance_fields(steps: pd.DataFrame, gamma: int) -> dict[str, Any]:
    """All columns of acceptance of a row, from its step log.

    Returns:
        Those of :func:`acceptance_columns`, and
        acceptance_histogram: number of verification steps that accepted 0, 1, ..., gamma drafted tokens; shortened last
            drafts included.
        joint_rates: of each position i = 1..gamma, the share of the blocks that drafted it which accepted at least i
            tokens; None where no block reached it. vLLM's per-position rate, but with blocks that were cut short left
            out of the denominator.
        conditional_rates: the share of the blocks that drafted position i and accepted i - 1 which accepted i as well.
    """
    log = StepLog.of(steps, gamma)
    return {
        **acceptance_columns(totals_by_prompt(steps)),
        "acceptance_histogram": np.bincount(log.accepted, minlength=gamma + 1).tolist(),
        "joint_rates": rates_by_position(log, JOINT),
        "conditional_rates": rates_by_position(log, CONDITIONAL),
    }
