"""Full batches: speedups and crossovers by hand, and crossovers that the measurements cannot tell."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from specbench.replay.cost.forecast import cost_models
from specbench.replay.cost.model import CostModel, Roofline
from specbench.replay.cost.steady import crossover, crossover_batch, steady
from tests.replay.test_cost import flat, made_up

LENGTHS = {0: 1.0, 1: 1.7, 2: 2.2, 4: 2.7, 8: 3.0}
TRUE = 250  # the crossover of these two at LENGTHS and 64 cached tokens
TARGET = Roofline(0.010, 0.00004, 300.0, 1e-7)
DRAFT = Roofline(0.001, 0.000004, 300.0, 1e-8)


def bound(knee: float | None = 10.0) -> CostModel:
    """Beyond the knee a step of 5 tokens a request costs 5 times a plain one; batches up to 64 were measured."""
    return replace(flat(0.01, 0.0), target=Roofline(0.01, 0.001, knee, 0.0))


def noisy(batches: tuple[int, ...], seed: int, noise: float = 0.02) -> pd.DataFrame:
    """made_up's steps by the two rooflines above, each time multiplied by exp(normal(0, noise))."""
    rng, rows = np.random.default_rng(seed), made_up(batches=batches, rounds=3)
    cached = rows["batch"] * rows["context"]
    rows["target"] = TARGET.seconds((rows["batch"] * (rows["gamma"] + 1)).to_numpy(), cached.to_numpy())
    rows["draft"] = rows["gamma"] * DRAFT.seconds(rows["batch"].to_numpy(), cached.to_numpy())
    phases = ["target", "draft", "verify", "rest"]
    rows[phases] *= np.exp(noise * rng.normal(size=(len(rows), len(phases))))
    return rows.assign(step=rows[phases].sum(axis=1))


def test_full_batches_by_hand():
    model = flat(0.01, 0.002)
    assert steady({0: 1.0, 2: 2.0}, 4, model, 32.0) == pytest.approx({0: 1.0, 2: 2 * 0.01 / 0.014})
    assert crossover_batch({0: 1.0, 2: 2.0}, model, 32.0) is None
    batch = crossover_batch({0: 1.0, 4: 3.0}, bound(), 32.0)
    assert batch is not None
    assert steady({4: 3.0}, batch, bound(), 32.0)[4] <= 1 < steady({4: 3.0}, batch - 1, bound(), 32.0)[4]


def test_a_crossover_is_known_near_the_measurements():
    lengths = {0: 1.0, 4: 3.0}
    assert crossover(lengths, [bound()], 32.0) == (6, 6, 6)
    assert crossover(lengths, [bound(), bound(5.0), bound(20.0)], 32.0) == (6, 5, 8)
    beyond = replace(bound(), batches=np.array([1.0, 2.0]))  # up to 2 measured: 4 times that is 8
    assert crossover(lengths, [beyond], 32.0) == (6, 6, 6)
    assert crossover(lengths, [replace(beyond, batches=np.array([1.0]), correction=np.ones((1, 2)))], 32.0) is None
    # One round that cannot tell is enough.
    assert crossover(lengths, [bound(), bound(), flat(0.01, 0.002)], 32.0) is None


def test_without_a_knee_only_measured_batches_count():
    """Drafts that never pay are seen at batch 1, whatever the knee; a draft whose own cost grows is extrapolated."""
    assert crossover({0: 1.0, 4: 1.1}, [flat(0.01, 0.002)], 32.0) == (1, 1, 1)
    growing = replace(flat(0.01, 0.0), draft=Roofline(0.001, 0.0001, 1.0, 0.0))
    assert crossover({0: 1.0, 4: 3.0}, [growing], 32.0) == (41, 41, 41)
    assert crossover({0: 1.0, 4: 3.0}, [replace(growing, batches=np.array([1.0, 32.0]))], 32.0) is None


def test_small_batches_do_not_tell_a_crossover():
    """Fits to batches up to 4 put it anywhere and say nothing; fits to batches up to 256 find it within a tenth."""
    anywhere = set()
    for seed in range(4):
        models = cost_models(noisy((1, 2, 4), seed))
        anywhere |= {crossover_batch(LENGTHS, model, 64.0) for model in models}
        assert crossover(LENGTHS, models, 64.0) is None
    assert None in anywhere
    assert len(anywhere) > 2
    for seed in range(4):
        estimate = crossover(LENGTHS, cost_models(noisy((1, 4, 16, 64, 256), seed)), 64.0)
        assert estimate is not None
        assert estimate[1] <= estimate[2]
        assert estimate == pytest.approx((TRUE, TRUE, TRUE), rel=0.1)
