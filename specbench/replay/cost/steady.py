"""A batch that is always full: what each gamma gains in it, and from which batch on nothing does.

The second question is mostly one of extrapolation, and rooflines fitted to a few small batches answer it with anything:
where batches up to 4 were measured and 250 is the truth, fits to times with 2% of noise say from 600 to never.
``crossover`` therefore answers only near the measurements, and with the range over their rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from specbench.replay.cost.model import CostModel

STEADY = "steady.parquet"
LARGEST_BATCH = 4096
REACH = 4  # times the largest measured batch: as far as a crossover is believed


@dataclass(frozen=True, kw_only=True)
class SteadyRow:
    """The speedup of a draft length with batches that stay full.

    ``crossover`` is the smallest batch at which no gamma pays, with its range over the rounds of measured costs; None:
    there is none, or the measurements do not tell.
    """

    batch: int
    gamma: int
    speedup: float
    measured: bool  # whether the batch lies within the measured ones
    crossover: int | None
    crossover_low: int | None
    crossover_high: int | None
    tokens_measured: int  # the most tokens a call whose cost was measured


def steady(lengths: dict[int, float], batch: int, model: CostModel, context: float) -> dict[int, float]:
    """Speedup of each gamma over plain decoding in a batch that is always full: E[tokens] t(B, 0) / t(B, gamma).

    Args:
        lengths: tokens a step of each gamma.
        context: tokens cached a request.
    """
    speedups = _speedups(lengths, np.array([batch]), model, context)[:, 0]
    return dict(zip(lengths, speedups.tolist(), strict=True))


def _speedups(lengths: dict[int, float], batches: np.ndarray, model: CostModel, context: float) -> np.ndarray:
    """Speedups [gammas, batches] over plain decoding."""
    plain = model.step_seconds(batches, np.zeros(len(batches)), context)
    gammas, lengths_column = (np.array(list(column))[:, None] for column in (lengths, lengths.values()))
    return lengths_column * plain / model.step_seconds(batches, gammas, context)


def crossover_batch(lengths: dict[int, float], model: CostModel, context: float) -> int | None:
    """The smallest batch at which no gamma above 0 is faster than plain decoding; None if there is none up to 4096.

    Beyond the measured batches this rests on the rooflines' shape alone.
    """
    batches = np.arange(1, LARGEST_BATCH + 1)
    speculative = {gamma: length for gamma, length in lengths.items() if gamma > 0}
    lost = np.flatnonzero((_speedups(speculative, batches, model, context) <= 1).all(axis=0))
    return int(batches[lost[0]]) if len(lost) else None


def crossover(lengths: dict[int, float], models: Sequence[CostModel], context: float) -> tuple[int, int, int] | None:
    """The crossover by the first model, and its range over the others; None where the measurements do not tell.

    They tell of it among the measured batches, and up to REACH times the largest where the target's knee was reached;
    and only if every round does.

    Args:
        models: of cost_models.
    """
    batches = []
    for model in models:
        batch, measured = crossover_batch(lengths, model, context), model.batches.max()
        reach = measured if model.target.knee is None else REACH * measured
        if batch is None or batch > reach:
            return None
        batches.append(batch)
    rounds = batches[1:] or batches
    return batches[0], min(rounds), max(rounds)
