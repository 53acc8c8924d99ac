"""Acceptance metrics, from the step log alone.

The step log has one line a verification and request, with columns prompt, step, num_draft_tokens, num_accepted,
num_emitted and draft_depth (see results.STEP_SCHEMA). All ratios are pooled (sums over sums), as vLLM's counters are; a
mean of per-request ratios is another quantity and can rank two runs the other way round.

A draft that is a tree has several candidates at a position, of which one can be accepted. Its num_draft_tokens counts
all of them, and its draft_depth the positions. So the acceptance rate, accepted by drafted tokens, is low for a tree
however good it is; acceptance by position, and the acceptance length, mean the same for trees and chains.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from specbench.metrics.intervals import Estimate, columns, ratio_of_sums


def depths(steps: pd.DataFrame) -> np.ndarray:
    """How many tokens each step could have accepted. Logs from before there were trees do not say it apart."""
    drafted = steps["num_draft_tokens"]
    known = steps["draft_depth"].fillna(drafted) if "draft_depth" in steps else drafted
    return known.to_numpy(dtype=np.int64)


def acceptance_histogram(steps: pd.DataFrame, gamma: int) -> list[int]:
    """Number of verification steps that accepted 0, 1, ..., gamma drafted tokens; shortened last drafts included."""
    return np.bincount(steps["num_accepted"], minlength=gamma + 1).tolist()


@dataclass(frozen=True)
class PositionRates:
    """Per position i = 1..gamma of the block, None where no block reached it.

    Attributes:
        joint: share of the blocks that drafted position i which accepted at least i tokens. vLLM's per-position
            rate, but with blocks that were cut short left out of the denominator.
        conditional: share of the blocks that drafted position i and accepted i - 1 which accepted i as well.
    """

    joint: list[float | None]
    conditional: list[float | None]


def position_rates(steps: pd.DataFrame, gamma: int) -> PositionRates:
    """Acceptance by position in the block."""
    depth, accepted = depths(steps), steps["num_accepted"].to_numpy()
    joint, conditional = [], []
    for i in range(1, gamma + 1):
        reached = depth >= i
        tested = reached & (accepted >= i - 1)
        hits = int((accepted >= i).sum())
        joint.append(hits / int(reached.sum()) if reached.any() else None)
        conditional.append(hits / int(tested.sum()) if tested.any() else None)
    return PositionRates(joint, conditional)


def position_estimates(steps: pd.DataFrame, gamma: int) -> tuple[list[Estimate | None], list[Estimate | None]]:
    """:func:`position_rates`, joint and conditional, with their intervals by bootstrap over prompts."""
    depth, accepted = depths(steps), steps["num_accepted"].to_numpy()
    joint, conditional = [], []
    for i in range(1, gamma + 1):
        reached, hit = depth >= i, accepted >= i
        counted = pd.DataFrame({"reached": reached, "tested": reached & (accepted >= i - 1), "hit": hit})
        sums = {name: column.to_numpy() for name, column in counted.groupby(_units(steps).to_numpy()).sum().items()}
        joint.append(ratio_of_sums(sums["hit"], sums["reached"]))
        conditional.append(ratio_of_sums(sums["hit"], sums["tested"]))
    return joint, conditional


def _units(steps: pd.DataFrame) -> pd.Series:
    """What intervals resample: the prompt of each step; turns of a conversation are one, each continues the last."""
    return steps["conversation"].fillna(steps["prompt"]) if "conversation" in steps else steps["prompt"]


def totals_by_prompt(steps: pd.DataFrame) -> pd.DataFrame:
    """drafted, accepted, emitted and steps of each prompt or conversation: what intervals resample."""
    grouped = steps.groupby(_units(steps), sort=True)
    return pd.DataFrame(
        {
            "drafted": grouped["num_draft_tokens"].sum(),
            "accepted": grouped["num_accepted"].sum(),
            "emitted": grouped["num_emitted"].sum(),
            "steps": grouped.size(),
        }
    )


def acceptance_columns(totals: pd.DataFrame) -> dict[str, Any]:
    """Counts; tokens drafted a step, acceptance rate and acceptance length with their intervals: columns of a row.

    Args:
        totals: of :func:`totals_by_prompt`.
    """
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
