"""Cost models against times that were made up: what is known comes back, and predictions add up by hand."""

import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from specbench.core.errors import ArgumentError
from specbench.replay.cost.forecast import cost_models, forecast
from specbench.replay.cost.model import CostModel, Line, Roofline, fit, fit_roofline
from specbench.replay.renewal import replay
from specbench.replay.simulate import simulated_steps
from specbench.replay.survival import survival
from specbench.replay.trace import Trace
from tests.helpers.markov_pair import markov_pair, sampled_texts, trace_of_tokens

TARGET = Roofline(0.010, 0.0002, 12.0, 1e-6)
DRAFT = Roofline(0.002, 0.00005, 4.0, 2e-7)
P, Q = markov_pair(6, closeness=0.3, seed=3)


def made_up(batches=(1, 2, 4, 8, 16), gammas=(0, 1, 2, 4, 8), contexts=(32, 256), rounds=2, odd=1.0) -> pd.DataFrame:
    """Steps of the two rooflines, 1 ms of verification and 0.5 ms of the rest; ``odd`` multiplies batch 2, gamma 4."""
    rows = []
    for number, batch, gamma, context in itertools.product(range(rounds), batches, gammas, contexts):
        cached = float(batch * context)
        target = float(TARGET.seconds(np.array(batch * (gamma + 1.0)), np.array(cached)))
        draft = gamma * float(DRAFT.seconds(np.array(float(batch)), np.array(cached)))
        times = {"draft": draft, "target": target, "verify": 0.001, "rest": 0.0005}
        step = sum(times.values()) * (odd if (batch, gamma) == (2, 4) else 1.0)
        start = {"start_tokens": batch * context, "start_target": 0.01 + 1e-4 * batch * context}
        start["start_draft"] = 0.2 * start["start_target"] * (gamma > 0)
        about = {"round": number, "batch": batch, "gamma": gamma, "context": float(context), "steps": 4}
        rows.append({**about, **times, "step": step, **start})
    return pd.DataFrame(rows)


def test_a_roofline_comes_back_from_its_own_times():
    tokens, cached = (a.ravel() for a in np.meshgrid([1.0, 2, 4, 8, 12, 16, 32], [100.0, 1000.0]))
    got = fit_roofline(tokens, cached, TARGET.seconds(tokens, cached))
    assert (got.floor, got.per_token, got.knee, got.per_cached) == pytest.approx((0.010, 0.0002, 12, 1e-6), rel=1e-6)


def test_without_a_slope_there_is_no_knee():
    tokens = np.array([1.0, 2, 4])
    got = fit_roofline(tokens, np.zeros(3), np.full(3, 0.01))
    assert got.knee is None
    assert got.seconds(np.array([1e6]), np.array([0.0]))[0] == pytest.approx(0.01)
    with pytest.raises(ArgumentError, match="positive"):
        fit_roofline(tokens, np.zeros(3), np.zeros(3))


def test_one_batch_and_context_do_not_tell_the_cache_from_the_weights():
    """Cached tokens grow with gamma there, and so does the time: read at ten times as many, it would be that long."""
    rows = made_up(batches=(1,), contexts=(48,))
    rows["context"] += 4.0 * rows["gamma"]
    rows["target"] = 1e-4 * rows["context"]
    model = fit(rows)
    assert (model.target.per_cached, model.draft.per_cached) == (0, 0)
    assert model.target.seconds(np.array([1.0]), np.array([480.0]))[0] == pytest.approx(0.0048, rel=0.1)
    assert fit(made_up(batches=(1,), contexts=(48, 96))).target.per_cached == pytest.approx(1e-6, rel=1e-3)


def test_a_fit_says_what_was_measured_and_interpolates():
    rows = made_up(odd=1.5)
    model = fit(rows)
    assert model.draft is not None
    for row in rows[rows["context"] == 32].itertuples():
        got = model.step_seconds(np.array([row.batch]), np.array([row.gamma]), 32.0)[0]
        assert got == pytest.approx(row.step, rel=0.02), (row.batch, row.gamma)
    between = model.step_seconds(np.array([2]), np.array([3]), 32.0)[0]
    fitted = sum(float(v[0]) for v in model.phases(np.array([2]), np.array([3]), 32.0).values())
    assert between / fitted == pytest.approx(1.25, rel=0.02)  # half-way between 1 and 1.5
    beyond = model.step_seconds(np.array([64]), np.array([8]), 32.0)[0]
    exact = 0.0015 + float(TARGET.seconds(np.array(576.0), np.array(2048.0)))
    exact += 8 * float(DRAFT.seconds(np.array(64.0), np.array(2048.0)))
    assert beyond == pytest.approx(exact, rel=0.05)


def test_prompts_cost_what_feeding_them_did():
    """Plain decoding feeds the target alone, and its measurements say nothing of feeding both."""
    model = fit(made_up())
    assert model.start_seconds(100.0, drafting=False) == pytest.approx(0.02)
    assert model.start_seconds(100.0, drafting=True) == pytest.approx(0.024)


def test_a_hole_in_the_grid_is_refused():
    rows = made_up()
    with pytest.raises(ArgumentError, match="every batch"):
        fit(rows[(rows["batch"] != 4) | (rows["gamma"] != 2)])
    with pytest.raises(ArgumentError, match="0 among them"):
        fit(rows[rows["gamma"] > 0])


@pytest.mark.parametrize("rows", [made_up(batches=(1,)), made_up(gammas=(0,)), made_up(batches=(3,), gammas=(0,))])
def test_a_grid_of_one_line(rows):
    model = fit(rows)
    batch, gamma = (int(rows[name].max()) for name in ("batch", "gamma"))
    measured = rows[(rows["batch"] == batch) & (rows["gamma"] == gamma) & (rows["context"] == 32)]["step"].iloc[0]
    assert model.step_seconds(np.array([batch]), np.array([gamma]), 32.0)[0] == pytest.approx(measured, rel=0.02)


def flat(step: float, per_gamma: float) -> CostModel:
    """Steps of ``step + per_gamma gamma`` seconds whatever the batch; prompts cost nothing."""
    nothing = Line(0.0, 0.0)
    return CostModel(
        Roofline(step, 0.0, None, 0.0), Roofline(per_gamma, 0.0, None, 0.0), nothing, nothing, nothing, nothing,
        np.array([1.0, 64.0]), np.array([0.0, 64.0]), np.ones((2, 2)),
    )  # fmt: skip


def certain(count: int, length: int, prompts: Sequence[str] = ()) -> Trace:
    """Texts of which every drafted token is accepted: p is q."""
    p, _ = markov_pair(4)
    return trace_of_tokens(p, p, sampled_texts(p, count, length, seed=0).tolist(), prompts=prompts)


def prompts(trace: Trace, tokens: int = 8) -> dict[str, int]:
    return dict.fromkeys(trace.prompts, tokens)


@pytest.mark.parametrize("batch", [1, 5])
def test_a_forecast_of_certain_acceptance_by_hand(batch):
    """p = q: texts of 20 tokens take 4 steps of 5 at gamma 4, the last of which drafts 4 as well; plain takes 20."""
    trace = certain(10, 20)
    got = forecast(trace, "token", 4, batch, [flat(0.01, 0.002)], prompt_tokens=prompts(trace), runs=5)
    batches = 10 / batch
    assert got.tokens_per_step == pytest.approx(5)
    assert got.step_seconds == pytest.approx(0.018)
    assert got.tokens_per_second == pytest.approx(200 / (batches * 4 * 0.018))
    assert got.plain_tokens_per_second == pytest.approx(200 / (batches * 20 * 0.01))
    assert got.speedup == pytest.approx(20 * 0.01 / (4 * 0.018))
    assert got.speedup_low == pytest.approx(got.speedup_high)  # nothing is random


def test_one_prompt_gives_no_interval_of_a_forecast():
    """However many texts it has: nothing shows how much prompts differ."""
    trace = trace_of_tokens(P, Q, sampled_texts(P, 4, 30, seed=1).tolist(), prompts=["a"] * 4)
    got = forecast(trace, "token", 4, 1, [flat(0.01, 0.0)], prompt_tokens=prompts(trace))
    assert got.speedup > 1
    assert (got.speedup_low, got.speedup_high) == (None, None)


def test_prompts_are_padded_to_the_longest_and_fed_once():
    """3 prompts of 5, 9 and 3 tokens, 2 texts each: alone longest - 1, and the first two together 2 x (9 - 1)."""
    trace = certain(6, 20, ["a", "a", "b", "b", "c", "c"])
    model = replace(flat(0.01, 0.0), start_both=Line(0.0, 1.0))
    lengths = {"a": 5, "b": 9, "c": 3}
    got = forecast(trace, "token", 4, 2, [model], prompt_tokens=lengths, runs=1)
    assert got.start_seconds == pytest.approx((4 + 8 + 2) / 3)
    together = forecast(trace, "token", 4, 4, [model], prompt_tokens=lengths, runs=1)
    assert together.start_seconds == pytest.approx((2 * 8 + 2) / 2)
    # All texts in one batch: three different prompts, each fed once.
    assert forecast(trace, "token", 4, 6, [model], prompt_tokens=lengths, runs=1).start_seconds == pytest.approx(24)


def test_longer_prompts_are_cached():
    """20 cached tokens a step, then each text's own: the cost of the cache is that of the mean request and step."""
    trace = certain(2, 5, ["a", "b"])
    model = replace(flat(0.0, 0.0), target=Roofline(0.0, 0.0, None, 1.0))
    got = forecast(trace, "token", 4, 2, [model], prompt_tokens={"a": 10, "b": 30}, runs=1)
    assert got.step_seconds == pytest.approx(2 * 20)
    assert got.plain_step_seconds == pytest.approx(2 * (20 + 2))  # behind the prompts and 0 to 4 tokens


def test_the_last_steps_draft_less():
    """Texts of 3 tokens at gamma 4: one step that drafts 2."""
    trace = certain(6, 3)
    got = forecast(trace, "block", 4, 2, [flat(0.01, 0.002)], prompt_tokens=prompts(trace), runs=5)
    assert got.step_seconds == pytest.approx(0.014)


@pytest.mark.parametrize("limit", [6, 24])
def test_texts_that_stop_are_drafted_for_up_to_their_limit(limit):
    """Where drafting alone takes time, a second a token, the seconds are the tokens that replay says are drafted."""
    trace = replace(
        trace_of_tokens(P, Q, sampled_texts(P, 64, 6, seed=1).tolist()), limits=np.full(64, limit, dtype=np.int64)
    )
    (exact,) = replay(trace, "token", [4])
    got = forecast(trace, "token", 4, 1, [flat(1e-9, 1.0)], prompt_tokens=prompts(trace))
    assert len(trace) / got.tokens_per_second == pytest.approx(exact.drafted.sum(), rel=0.02)


def test_forecast_agrees_with_replay_and_waits_for_the_slowest():
    """At batch 1 the mean steps are the replay's; side by side, a batch is slower than its mean request."""
    trace = trace_of_tokens(P, Q, sampled_texts(P, 64, 30, seed=1).tolist())
    (exact,) = replay(trace, "token", [4])
    alone = forecast(trace, "token", 4, 1, [flat(0.01, 0.0)], prompt_tokens=prompts(trace))
    assert alone.tokens_per_step == pytest.approx(exact.acceptance_length, rel=0.02)
    assert alone.speedup_low < alone.speedup < alone.speedup_high
    assert alone.speedup == pytest.approx(exact.acceptance_length, rel=0.02)
    together = forecast(trace, "token", 4, 16, [flat(0.01, 0.0)], prompt_tokens=prompts(trace))
    assert together.speedup < 0.95 * alone.speedup


def test_noise_is_counted_once():
    """24 identical texts: resampled prompts add nothing, so the interval is a run's own 95% range (its width within a
    tenth; a prompt drawn twice with the noise of one drawing would make it 1.41 times as wide)."""
    trace = trace_of_tokens(P, Q, sampled_texts(P, 1, 40, seed=1).tolist() * 24)
    got = forecast(trace, "token", 4, 1, [flat(0.01, 0.0)], prompt_tokens=prompts(trace), runs=1000)
    steps = simulated_steps(trace, survival(trace, "token", 4), 2000).sum(axis=1)
    low, high = np.quantile(24 * 40 / steps, [0.025, 0.975])
    assert got.speedup_high - got.speedup_low == pytest.approx(high - low, rel=0.1)


def test_the_last_batch_is_smaller():
    """5 texts of certain acceptance in batches of 2, where a step costs a second a cached token."""
    trace = certain(5, 20)
    model = replace(flat(0.0, 0.0), target=Roofline(0.0, 0.0, None, 1.0))
    got = forecast(trace, "token", 4, 2, [model], prompt_tokens=prompts(trace, 10), runs=1)
    # Cached at a text's steps: 10, 15, 20, 25 speculatively, 10, 11, ..., 29 plainly.
    assert got.tokens_per_second == pytest.approx(100 / (5 * 70))
    assert got.plain_tokens_per_second == pytest.approx(100 / (5 * 390))


def test_rounds_of_measurements_widen_the_interval():
    trace = certain(10, 20)
    rows = made_up()
    rows.loc[(rows["round"] == 1) & (rows["gamma"] > 0), ["step", "target", "draft"]] *= 1.3
    models = cost_models(rows)
    assert len(models) == 3
    got = forecast(trace, "token", 4, 2, models, prompt_tokens=prompts(trace, 32), runs=40)
    assert got.speedup_high / got.speedup_low == pytest.approx(1.3, rel=0.05)
    assert got.speedup_low <= got.speedup <= got.speedup_high
