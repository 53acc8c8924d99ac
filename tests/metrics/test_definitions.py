"""Every metric against a log worked out by hand, with all that tells definitions apart in it."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from specbench.metrics.definitions import (
    METRICS,
    POSITION_METRICS,
    all_metrics,
    latency_columns,
    opposite_rankings,
)
from specbench.metrics.ratios import StepLog, rates_by_position, ratio
from specbench.metrics.request_latency import RequestTimes

# gamma 3. (prompt, drafted, accepted, emitted)
AWKWARD = [
    ("a", 3, 3, 4),  # all accepted, and the bonus
    ("a", 3, 0, 1),  # rejected at once
    ("a", 3, 3, 1),  # all accepted, but the first of them ends the text: 1 emitted
    ("b", 3, 1, 2),
    ("b", 1, 1, 2),  # cut short by max_new_tokens, accepted whole
    ("b", 0, 0, 1),  # one token left: nothing drafted
    ("c", 0, 0, 1),  # a request that never drafted
]
# d = 13, a = 8, e = 12, N = 7, drafts 5, full drafts 4 (a = 7), gamma 3.
# By request d, a, e, N, drafts: a 9, 6, 6, 3, 3; b 4, 2, 5, 3, 2; c 0, 0, 1, 1, 0.
BY_HAND = {
    "acceptance length": 15 / 7,
    "block efficiency": 15 / 7,
    "mean accepted tokens": 12 / 7,
    "accepted tokens a step": 8 / 7,
    "accept length": 12 / 7,
    "accept length, mean of requests": (6 / 3 + 5 / 3 + 1) / 3,
    "decoded tokens an iteration": (6 / 3 + 5 / 3 + 1) / 3,
    "mean acceptance length": 1 + 8 / 5,
    "acceptance length, mean of requests": 1 + (6 / 3 + 2 / 2) / 2,
    "acceptance length, full drafts": 1 + 7 / 4,
    "acceptance rate": 8 / 13,
    "acceptance rate, mean of requests": (6 / 9 + 2 / 4) / 2,
    "accept rate": 8 / 21,
    "accept rate, first form": 15 / 28,
    "draft acceptance rate, trtllm-bench": (3 / 9 + 2 / 9 + 0 / 3) / 3,
    "tokens accepted over K + 1": 15 / 28,
    "system efficiency": 13 / 20,
    "accepted per verified": (9 / 12 + 4 / 6) / 2,
    "alpha, tested tokens": 8 / (3 + 1 + 3 + 2 + 1),
    "alpha, implied": 0.753721,  # 1 + x + x^2 + x^3 = 2.75
    "drafts accepted whole": 2 / 5,
}
POSITIONS = {
    "joint": [4 / 5, 2 / 4, 2 / 4],
    "joint, all drafts": [4 / 5, 2 / 5, 2 / 5],
    "joint, all steps": [3 / 7, 1 / 7, 1 / 7],
    "conditional": [4 / 5, 2 / 3, 2 / 2],
    "conditional, all steps": [3 / 7, 1 / 3, 1 / 1],
}


def step_log(lines: list[tuple[str, int, int, int]]) -> pd.DataFrame:
    frame = pd.DataFrame(lines, columns=["prompt", "num_draft_tokens", "num_accepted", "num_emitted"])
    return frame.assign(step=frame.groupby("prompt").cumcount())


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_metric_by_hand(metric):
    assert ratio(StepLog.of(step_log(AWKWARD), 3), metric.formula) == pytest.approx(BY_HAND[metric.name], abs=1e-6)


@pytest.mark.parametrize("metric", POSITION_METRICS, ids=lambda metric: metric.name)
def test_position_metric_by_hand(metric):
    log = StepLog.of(step_log(AWKWARD), 3)
    assert rates_by_position(log, metric.formula) == pytest.approx(POSITIONS[metric.name])


def test_several_texts_of_a_prompt_are_several_requests():
    """The step log of specbench.decode numbers them, where the log of a run names them "a" and "a#1"."""
    named = step_log([("a", 4, 4, 5), ("a#1", 4, 0, 1), ("a#1", 4, 0, 1), ("b", 4, 2, 3)])
    numbered = named.assign(prompt=[0, 0, 0, 1], sample=[0, 1, 1, 0])
    pd.testing.assert_series_equal(all_metrics(numbered, 4), all_metrics(named, 4))
    assert all_metrics(numbered, 4)["acceptance rate, mean of requests"] == pytest.approx((1 + 0 + 1 / 2) / 3)


def test_no_two_metrics_share_a_name():
    assert len({metric.name for metric in METRICS}) == len(METRICS) == len(BY_HAND)
    assert len({metric.name for metric in POSITION_METRICS}) == len(POSITION_METRICS) == len(POSITIONS)


def test_plain_decoding_leaves_rates_undefined():
    table = all_metrics(step_log([("a", 0, 0, 1), ("a", 0, 0, 1)]), 0)
    assert table["acceptance length"] == table["accept length"] == 1
    undefined = table[table.isna()].index
    assert set(undefined) == {
        "mean acceptance length", "acceptance length, mean of requests", "acceptance rate",
        "acceptance rate, mean of requests", "accept rate", "draft acceptance rate, trtllm-bench", "system efficiency",
        "accepted per verified", "alpha, tested tokens", "alpha, implied", "drafts accepted whole",
    }  # fmt: skip


def test_a_perfect_draft_has_rates_and_alpha_one():
    log = StepLog.of(step_log([("a", 3, 3, 4), ("b", 3, 3, 4)]), 3)
    names = [metric.name for metric in METRICS]
    rates = {m.name: ratio(log, m.formula) for m in METRICS[names.index("acceptance rate") :]}
    assert rates == pytest.approx(dict.fromkeys(rates, 1.0))


def test_definitions_can_rank_runs_oppositely():
    """One long request that drafts well against many short ones: pooled and per-request means disagree."""
    one = step_log([("a", 2, 2, 3)] * 6 + [("b", 2, 0, 1)] * 2)  # rates 1 and 0: pooled 12/16, mean 1/2
    two = step_log([("a", 2, 1, 2)] * 6 + [("b", 2, 2, 3)] * 1)  # rates 1/2 and 1: pooled 8/14, mean 3/4
    pairs = opposite_rankings([("one", all_metrics(one, 2)), ("two", all_metrics(two, 2))])
    assert ("one", "two", "acceptance rate, mean of requests", "acceptance rate") in pairs
    assert all(pair[:2] == ("one", "two") for pair in pairs)
    assert opposite_rankings([("one", all_metrics(one, 2)), ("again", all_metrics(one, 2))]) == []


def test_latencies_by_hand():
    """Two rounds of three requests, of which the second generated one token; the median over rounds counts."""
    first = np.array([[0.1, 0.2, 0.6], [0.3, 0.2, 0.6]])
    end = np.array([[0.5, 0.2, 1.6], [0.7, 0.2, 2.6]])
    columns = latency_columns(RequestTimes(first, end, np.array([[5, 1, 11]] * 2)))
    assert columns == pytest.approx({
        "mean_ttft_ms": 1000 / 3, "p50_ttft_ms": 200.0, "p99_ttft_ms": 592.0,  # of 200, 200, 600
        "mean_tpot_ms": 125.0, "p50_tpot_ms": 125.0, "p99_tpot_ms": 149.5,  # of 400 / 4 and 1500 / 10
    })  # fmt: skip


def test_one_token_requests_have_no_time_per_output_token():
    columns = latency_columns(RequestTimes(np.array([[0.1]]), np.array([[0.1]]), np.array([[1]])))
    assert (columns["p50_ttft_ms"], columns["p50_tpot_ms"]) == (pytest.approx(100), None)
