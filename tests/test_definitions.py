"""Every metric against a log worked out by hand, with all that tells definitions apart in it."""

from __future__ import annotations

import pandas as pd
import pytest

from specbench.metrics import acceptance
from specbench.metrics.definitions import METRICS, POSITION_METRICS, StepLog, all_metrics, opposite_rankings

# gamma 3. (prompt, drafted, accepted, emitted)
AWKWARD = [
    ("a", 3, 3, 4),  # all accepted, and the bonus
    ("a", 3, 0, 1),  # rejected at once
    ("a", 3, 2, 1),  # the first accepted token ends the text: 1 emitted
    ("b", 3, 1, 2),
    ("b", 1, 1, 2),  # cut short by max_new_tokens, accepted whole
    ("b", 0, 0, 1),  # one token left: nothing drafted
    ("c", 0, 0, 1),  # a request that never drafted
]
# d = 13, a = 7, e = 12, N = 7, drafts 5, full drafts 4 (a = 6), gamma 3
BY_HAND = {
    "acceptance length": 14 / 7,
    "block efficiency": 14 / 7,
    "mean accepted tokens": 14 / 7,
    "accepted tokens a step": 7 / 7,
    "accept length": 12 / 7,
    "mean acceptance length": 1 + 7 / 5,
    "acceptance length, full drafts": 1 + 6 / 4,
    "decoded tokens an iteration": (6 / 3 + 5 / 3 + 1) / 3,
    "acceptance rate": 7 / 13,
    "acceptance rate, mean of requests": (5 / 9 + 2 / 4) / 2,
    "accept rate": 7 / 21,
    "accept rate, first form": 14 / 28,
    "tokens accepted over K + 1": 14 / 28,
    "alpha, tested tokens": 7 / (3 + 1 + 3 + 2 + 1),
    "alpha, implied": 0.691414,  # 1 + x + x^2 + x^3 = 2.5
    "drafts accepted whole": 2 / 5,
}
POSITIONS = {
    "joint": [4 / 5, 2 / 4, 1 / 4],
    "joint, all drafts": [4 / 5, 2 / 5, 1 / 5],
    "conditional": [4 / 5, 2 / 3, 1 / 2],
}


def step_log(lines: list[tuple[str, int, int, int]]) -> pd.DataFrame:
    frame = pd.DataFrame(lines, columns=["prompt", "num_draft_tokens", "num_accepted", "num_emitted"])
    return frame.assign(step=frame.groupby("prompt").cumcount())


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_metric_by_hand(metric):
    assert metric.compute(StepLog.of(step_log(AWKWARD), 3)) == pytest.approx(BY_HAND[metric.name], abs=1e-6)


@pytest.mark.parametrize("metric", POSITION_METRICS, ids=lambda metric: metric[0])
def test_position_metric_by_hand(metric):
    assert metric[3](StepLog.of(step_log(AWKWARD), 3)) == pytest.approx(POSITIONS[metric[0]])


def test_every_metric_names_its_owner_and_no_two_share_a_name():
    assert len({metric.name for metric in METRICS}) == len(METRICS) == len(BY_HAND)
    assert all(metric.owner and metric.formula and metric.compute.__doc__ for metric in METRICS)


def test_plain_decoding_leaves_rates_undefined():
    table = all_metrics(step_log([("a", 0, 0, 1), ("a", 0, 0, 1)]), 0).set_index("name")["value"]
    assert table["acceptance length"] == table["accept length"] == 1
    undefined = table[table.isna()].index
    assert set(undefined) == {
        "mean acceptance length", "acceptance rate", "acceptance rate, mean of requests", "accept rate",
        "alpha, tested tokens", "alpha, implied", "drafts accepted whole",
    }  # fmt: skip


def test_a_perfect_draft_has_alpha_one():
    log = StepLog.of(step_log([("a", 3, 3, 4), ("b", 3, 3, 4)]), 3)
    for name in ("alpha, implied", "alpha, tested tokens", "acceptance rate", "tokens accepted over K + 1"):
        assert next(m for m in METRICS if m.name == name).compute(log) == pytest.approx(1)


def test_position_rates_are_those_of_the_results():
    """Two modules compute them; they must not part."""
    rates = acceptance.position_rates(step_log(AWKWARD), 3)
    assert rates.joint == pytest.approx(POSITIONS["joint"])
    assert rates.conditional == pytest.approx(POSITIONS["conditional"])


def test_definitions_can_rank_runs_oppositely():
    """One long request that drafts well against many short ones: pooled and per-request means disagree."""
    one = step_log([("a", 2, 2, 3)] * 6 + [("b", 2, 0, 1)] * 2)  # rates 1 and 0: pooled 12/16, mean 1/2
    two = step_log([("a", 2, 1, 2)] * 6 + [("b", 2, 2, 3)] * 1)  # rates 1/2 and 1: pooled 8/14, mean 3/4
    found = opposite_rankings([("one", all_metrics(one, 2)), ("two", all_metrics(two, 2))])
    assert ("one", "two", "acceptance rate, mean of requests", "acceptance rate") in found
    assert all(pair[:2] == ("one", "two") for pair in found)
    assert opposite_rankings([("one", all_metrics(one, 2)), ("again", all_metrics(one, 2))]) == []
