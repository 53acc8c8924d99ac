"""Tokens a second before anyone decodes: a trace's acceptance times a cost model's step times.

``forecast`` draws whole runs from the trace (replay/simulate.py): texts go into batches in the order of their requests,
prompts are padded to the longest of a batch and fed once where they are equal, a batch takes steps until its slowest
text is done, and each step costs what the model says of the requests still active and the tokens still drafted.
Intervals hold resampled prompts, accept/reject noise, and the spread between rounds of the measured costs. ``steady``
is the closed form for a batch that is always full.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from jaxtyping import Float64, Int64

from specbench.cost.model import CostModel, fit
from specbench.metrics.intervals import CONFIDENCE, Estimate
from specbench.replay.simulate import NOTHING, simulate
from specbench.replay.survival import survival
from specbench.replay.trace import Trace

RUNS = 200
LARGEST_BATCH = 4096


@dataclass(frozen=True)
class Forecast:
    """One setting. Speedups over plain decoding by the same costs; tokens a second; steps and seconds a step.

    ``start_seconds`` is of feeding a batch's prompts to both models.
    """

    gamma: int
    batch: int
    speedup: Estimate
    tokens_per_second: Estimate
    plain_tokens_per_second: float
    tokens_per_step: float
    step_seconds: float
    start_seconds: float


def cost_models(rows: pd.DataFrame) -> list[CostModel]:
    """A model of all measurements, then one of each round alone."""
    rounds = [part for _, part in rows.groupby("round")]
    return [fit(rows), *(fit(part) for part in rounds if len(rounds) > 1)]


def forecast(
    trace: Trace,
    rule: str,
    gamma: int,
    batch: int,
    models: Sequence[CostModel],
    prompt_tokens: Mapping[str, int],
    runs: int = RUNS,
    seed: int = 0,
) -> Forecast:
    """A setting's tokens a second and speedup, with 95% intervals.

    Args:
        models: of cost_models: the first is the best estimate, the others its spread.
        prompt_tokens: of each prompt, by name.
    """
    rng, accepted = np.random.default_rng(seed), survival(trace, rule, gamma)
    spread = models[1:] or models
    texts = _texts_by_prompt(trace)
    fed = np.array([prompt_tokens[name] for name in trace.prompts])
    drawn = []
    for _ in range(runs):
        model = spread[int(rng.integers(len(spread)))]
        chosen = [texts[i] for i in rng.integers(len(texts), size=len(texts))]
        drawn.append(_run(trace, accepted, gamma, batch, model, fed, chosen, rng))
    central = [_run(trace, accepted, gamma, batch, models[0], fed, texts, rng) for _ in range(max(8, runs // 8))]
    tokens, seconds, plain, steps, stepped, started = np.mean(central, axis=0)
    each = np.array(drawn)
    return Forecast(
        gamma,
        batch,
        _estimate(plain / seconds, each[:, 2] / each[:, 1]),
        _estimate(tokens / seconds, each[:, 0] / each[:, 1]),
        float(tokens / plain),
        float(tokens / steps),
        float(stepped),
        float(started),
    )


def _texts_by_prompt(trace: Trace) -> list[np.ndarray]:
    names = np.array(trace.prompts)
    return [np.flatnonzero(names == name) for name in dict.fromkeys(trace.prompts)]


def _run(
    trace: Trace,
    accepted: Float64[np.ndarray, "T gamma1"],
    gamma: int,
    batch: int,
    model: CostModel,
    prompt_tokens: Int64[np.ndarray, " n"],
    chosen: Sequence[np.ndarray],
    rng: np.random.Generator,
) -> tuple[float, float, float, float, float, float]:
    """One run over the chosen prompts' texts, first each prompt's first (record.repeated).

    Returns:
        tokens, seconds, plain seconds, steps of requests, mean seconds of a step, and of feeding a batch's prompts.
    """
    samples = range(max(map(len, chosen)))
    laid_out = [(texts[k], owner) for k in samples for owner, texts in enumerate(chosen) if k < len(texts)]
    numbers, owners = np.array(laid_out).T
    taken = simulate(trace, accepted, rng)[numbers]
    lengths, prompts = trace.lengths[numbers], prompt_tokens[numbers]
    going = taken != NOTHING
    emitted = np.where(going, taken + 1, 0)
    before = emitted.cumsum(axis=1) - emitted
    steps, plain, fed = [], [], []  # of every batch: requests active, tokens drafted, tokens cached; prompt tokens
    for start in range(0, len(numbers), batch):
        rows = slice(start, start + batch)
        active = going[rows].sum(axis=0)
        active = active[active > 0]
        here = going[rows, : active.size]
        room = np.where(here, lengths[rows, None] - before[rows, : active.size] - 1, 0).max(axis=0)
        cached = np.where(here, prompts[rows, None] + before[rows, : active.size], 0).sum(axis=0) / active
        steps.append(np.stack([active, np.minimum(gamma, room), cached]))
        decoding = lengths[rows, None] > np.arange(lengths[rows].max())
        position = (decoding * prompts[rows, None]).sum(axis=0) / decoding.sum(axis=0) + np.arange(decoding.shape[1])
        plain.append(np.stack([decoding.sum(axis=0), np.zeros(position.size), position]))
        # The last token of a prompt is fed by the first step.
        fed.append(len(np.unique(owners[rows])) * (prompts[rows].max() - 1))
    times = model.step_seconds(*np.concatenate(steps, axis=1))
    plain_times = model.step_seconds(*np.concatenate(plain, axis=1))
    started = model.start_seconds(np.array(fed), drafting=gamma > 0)
    return (
        float(lengths.sum()),
        float(times.sum() + started.sum()),
        float(plain_times.sum() + model.start_seconds(np.array(fed), drafting=False).sum()),
        float(going.sum()),
        float(times.mean()),
        float(started.mean()),
    )


def _estimate(value: float, drawn: np.ndarray) -> Estimate:
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(drawn, [tail, 1 - tail])
    return Estimate(float(value), float(low), float(high))


def steady(lengths: dict[int, float], batch: int, model: CostModel, context: float) -> dict[int, float]:
    """Speedup of each gamma over plain decoding in a batch that is always full: E[tokens] t(B, 0) / t(B, gamma).

    Args:
        lengths: tokens a step of each gamma.
    """
    gammas = np.array(list(lengths))
    sizes = np.full(len(gammas), batch)
    plain = model.step_seconds(np.array([batch]), np.array([0]), context)[0]
    times = model.step_seconds(sizes, gammas, context)
    return {int(g): float(lengths[int(g)] * plain / t) for g, t in zip(gammas, times, strict=True)}


def crossover_batch(lengths: dict[int, float], model: CostModel, context: float) -> int | None:
    """The smallest batch at which no gamma above 0 is faster than plain decoding; None if there is none up to 4096.

    Beyond the measured batches this rests on the rooflines' shape alone.
    """
    batches = np.arange(1, LARGEST_BATCH + 1)
    plain = model.step_seconds(batches, np.zeros(len(batches)), context)
    best = np.zeros(len(batches))
    for gamma, length in lengths.items():
        if gamma > 0:
            times = model.step_seconds(batches, np.full(len(batches), gamma), context)
            best = np.maximum(best, length * plain / times)
    lost = np.flatnonzero(best <= 1)
    return int(batches[lost[0]]) if len(lost) else None
