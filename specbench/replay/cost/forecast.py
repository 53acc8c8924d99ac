"""Tokens a second before anyone decodes: a trace's acceptance times a cost model's step times.

``forecast`` draws whole runs from the trace (replay/simulate.py): texts go into batches prompt by prompt, prompts are
padded to the longest of a batch and fed once where they are equal, a batch takes steps until its slowest text is done,
and each step costs what the model says of the requests still active and the tokens still drafted.
Intervals hold resampled prompts, accept/reject noise, and the spread between rounds of the measured costs; they do not
hold what the cost model's shape gets wrong, nor a machine that is faster or slower by the time of the decoding.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
from jaxtyping import Float64, Int64

from specbench.metrics.intervals import Estimate, columns
from specbench.replay.cost.model import CostModel, fit
from specbench.replay.simulate import NOTHING, simulate
from specbench.replay.survival import survival
from specbench.replay.trace import Trace
from specbench.rules import RuleInfo

PREDICTED, MEASURED = "predicted.parquet", "measured.parquet"
RUNS = 200


@dataclass(frozen=True, kw_only=True)
class PredictedRow:
    """The speedup of a draft length over plain decoding by the same costs, and what it follows from."""

    gamma: int
    batch: int
    speedup: float
    speedup_low: float | None  # None of one prompt; if it was measured, of one batch or of batches that share prompts
    speedup_high: float | None
    tokens_per_second: float
    plain_tokens_per_second: float
    tokens_per_step: float
    step_seconds: float
    plain_step_seconds: float
    start_seconds: float  # of a batch's prompts, both models


@dataclass(frozen=True, kw_only=True)
class MeasuredRow(PredictedRow):
    """What :class:`PredictedRow` predicts, measured."""

    batches: int  # timed; the interval of the speedup is over them, those that share a prompt as one
    batch_seconds: float  # of decoding a batch speculatively, prompts included
    seconds_draft: float
    seconds_target: float
    seconds_verify: float


def cost_models(rows: pd.DataFrame) -> list[CostModel]:
    """A model of all measurements, then one of each round alone."""
    rounds = [part for _, part in rows.groupby("round")]
    return [fit(rows), *(fit(part) for part in rounds if len(rounds) > 1)]


def forecast(
    trace: Trace,
    rule: RuleInfo | str,
    gamma: int,
    batch: int,
    models: Sequence[CostModel],
    prompt_tokens: Mapping[str, int],
    runs: int = RUNS,
) -> PredictedRow:
    """A setting's tokens a second, and its speedup with a 95% interval.

    Args:
        models: of cost_models: the first is the best estimate, the others its spread.
        prompt_tokens: of each prompt, by name.
    """
    rng, accepted = np.random.default_rng(0), survival(trace, rule, gamma)
    spread = models[1:] or models
    texts = _texts_by_prompt(trace)
    fed = np.array([prompt_tokens[name] for name in trace.prompts])
    _, same = np.unique(trace.prompts, return_inverse=True)
    drawn = []
    for _ in range(runs):
        model = spread[int(rng.integers(len(spread)))]
        chosen = [texts[i] for i in rng.integers(len(texts), size=len(texts))]
        drawn.append(_run(trace, accepted, gamma, batch, model, fed, same, chosen, rng))
    central = [_run(trace, accepted, gamma, batch, models[0], fed, same, texts, rng) for _ in range(max(8, runs // 8))]
    tokens, seconds, plain, steps, stepped, plain_stepped, started = np.mean(central, axis=0)
    ends = np.array(drawn) if len(texts) > 1 else np.full((1, 3), math.nan)
    speedup: Any = columns("speedup", Estimate.of_resamples(plain / seconds, ends[:, 2] / ends[:, 1]))
    return PredictedRow(
        gamma=gamma,
        batch=batch,
        **speedup,
        tokens_per_second=float(tokens / seconds),
        plain_tokens_per_second=float(tokens / plain),
        tokens_per_step=float(tokens / steps),
        step_seconds=float(stepped),
        plain_step_seconds=float(plain_stepped),
        start_seconds=float(started),
    )


def _texts_by_prompt(trace: Trace) -> list[np.ndarray]:
    """The numbers of the texts of each prompt or conversation."""
    names = np.array(trace.conversations)
    return [np.flatnonzero(names == name) for name in dict.fromkeys(trace.conversations)]


def _run(
    trace: Trace,
    accepted: Float64[np.ndarray, "T gamma1"],
    gamma: int,
    batch: int,
    model: CostModel,
    prompt_tokens: Int64[np.ndarray, " n"],
    same_prompt: Int64[np.ndarray, " n"],
    chosen: Sequence[np.ndarray],
    rng: np.random.Generator,
) -> tuple[float, float, float, float, float, float, float]:
    """One run over the chosen prompts' texts, those of a prompt one after the other, as protocol=predict decodes them.

    Args:
        prompt_tokens, same_prompt: of each text's prompt, its tokens and a number.
        chosen: numbers of texts, of each prompt or conversation that was drawn.

    Returns:
        tokens, seconds, plain seconds, steps of requests; mean seconds of a step, of a plain step, and of feeding a
        batch's prompts.
    """
    laid_out = [
        (text, owner * len(same_prompt) + same_prompt[text]) for owner, texts in enumerate(chosen) for text in texts
    ]
    numbers, owners = np.array(laid_out).T
    taken = simulate(trace, accepted, rng, numbers)  # a text that was drawn twice is decoded twice
    # Everything is [batches, batch]; the last batch is filled up with requests that decode nothing.
    going = _in_batches(taken != NOTHING, batch, "constant")
    emitted = np.where(going, _in_batches(taken, batch, "constant") + 1, 0)
    lengths = _in_batches(trace.lengths[numbers], batch, "constant")
    limits = _in_batches(trace.limits[numbers], batch, "constant")
    prompts, owners = (_in_batches(values, batch, "edge") for values in (prompt_tokens[numbers], owners))
    before = emitted.cumsum(axis=2) - emitted
    room = np.where(going, limits[:, :, None] - before - 1, 0).max(axis=1)
    times = _step_seconds(model, going, np.minimum(gamma, room), prompts[:, :, None] + before)
    position = np.arange(lengths.max())
    decoding = lengths[:, :, None] > position
    nothing = np.zeros((len(lengths), len(position)))
    plain = _step_seconds(model, decoding, nothing, prompts[:, :, None] + position)
    # Equal prompts are fed once, padded to the longest, and without the last token, which the first step feeds.
    different = 1 + (np.diff(np.sort(owners, axis=1), axis=1) > 0).sum(axis=1)
    fed = different * (prompts.max(axis=1) - 1)
    started = model.start_seconds(fed, drafting=gamma > 0)
    return (
        float(lengths.sum()),
        float(times.sum() + started.sum()),
        float(plain.sum() + model.start_seconds(fed, drafting=False).sum()),
        float(going.sum()),
        float(times.mean()),
        float(plain.mean()),
        float(started.mean()),
    )


def _in_batches(values: np.ndarray, batch: int, fill: Literal["constant", "edge"]) -> np.ndarray:
    """[n, ...] as [batches, batch, ...]; the last one is filled with zeros, or with more of the last value."""
    missing = [(0, -len(values) % batch), *[(0, 0)] * (values.ndim - 1)]
    return np.pad(values, missing, mode=fill).reshape(-1, batch, *values.shape[1:])


def _step_seconds(model: CostModel, going: np.ndarray, drafted: np.ndarray, cached: np.ndarray) -> np.ndarray:
    """Seconds of every step of every batch, in one array.

    Args:
        going: [batches, batch, steps], whether a request takes the step.
        drafted: [batches, steps], tokens drafted a request.
        cached: [batches, batch, steps], tokens cached of a request.
    """
    active = going.sum(axis=1)
    taken = active > 0
    context = np.where(going, cached, 0).sum(axis=1)[taken] / active[taken]
    return model.step_seconds(active[taken], drafted[taken], context)
