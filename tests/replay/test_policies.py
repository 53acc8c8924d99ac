"""Policies of how long to draft, replayed: by hand, against fixed lengths, and against a free-running draft."""

import dataclasses

import numpy as np
import pandas as pd
import pytest

from specbench.core.errors import ConfigError
from specbench.replay import renewal
from specbench.replay.policies import Policy, PolicyPoint, draft_lengths, frontier, gain_over_fixed, try_policy
from specbench.replay.renewal import replay
from specbench.replay.summary import policy_rows
from specbench.replay.survival import survival
from tests.helpers.markov_pair import markov_pair, sampled_texts, trace_of_tokens


def test_policies_stop_where_they_say():
    p, q = markov_pair(3)
    trace = trace_of_tokens(p, q, [[0, 1, 2, 0, 1, 2]])
    trace.columns["log_q"][:] = np.log([0.9, 0.9, 0.2, 0.9, 0.3, 0.9])
    trace.columns["draft_entropy"][:] = [0.1, 2.0, 0.1, 0.1, 0.1, 2.0]
    # Behind a token below one half: it is drafted, nothing after it is.
    assert draft_lengths(trace, Policy("probability", 0.5, 4)).tolist() == [3, 2, 1, 2, 1, 1]
    # Before a token of high entropy.
    assert draft_lengths(trace, Policy("entropy", 1.0, 4)).tolist() == [1, 0, 3, 2, 1, 0]
    assert draft_lengths(trace, Policy("fixed", None, 4)).tolist() == [4, 4, 4, 3, 2, 1]


@pytest.mark.parametrize("limits", [(3, 9, 6, 1), (40, 11, 6, 40)], ids=["by length", "behind stop tokens"])
@pytest.mark.parametrize("rule", ["token", "block"])
def test_a_policy_that_never_stops_is_the_fixed_length(rule, limits):
    """Which drafts past a stop token, as decoding does."""
    p, q = markov_pair(5)
    texts = [text[:length] for text, length in zip(sampled_texts(p, 4, 9, seed=1).tolist(), (3, 9, 6, 1), strict=True)]
    trace = dataclasses.replace(trace_of_tokens(p, q, texts), limits=np.array(limits))
    (plain,) = replay(trace, rule, [4])
    for policy in (Policy("fixed", None, 4), Policy("probability", 0.0, 4), Policy("entropy", 100.0, 4)):
        got = try_policy(trace, rule, policy)
        assert got.replayed.steps == pytest.approx(plain.steps)
        assert got.drafted_per_step == pytest.approx(plain.drafted.sum() / plain.steps.sum())


def drafted_by_the_draft(q: np.ndarray, policy: Policy, starts: np.ndarray, count: int, seed: int) -> float:
    """Mean tokens that a free-running draft proposes under a policy, from given last tokens."""
    rng = np.random.default_rng(seed)
    last, going, total = np.resize(starts, count), np.ones(count, dtype=bool), 0
    entropy = -(q * np.log(q)).sum(axis=1)
    for _ in range(policy.gamma):
        if policy.kind == "entropy":
            going &= entropy[last] <= policy.threshold
        total += going.sum()
        drawn = (rng.random(count)[:, None] > q[last].cumsum(axis=1)).sum(axis=1).clip(max=len(q) - 1)
        if policy.kind == "probability":
            going &= q[last, drawn] >= policy.threshold
        last = drawn
    return total / count


@pytest.mark.parametrize("policy", [Policy("probability", 0.3, 6), Policy("entropy", 1.58, 6)], ids=lambda p: p.kind)
def test_drafted_tokens_are_those_of_the_free_running_draft(policy):
    """Within 2%, where following the text instead of the draft is off by more (asserted), so this sees the weights."""
    p, q = markov_pair(6, closeness=0.3, seed=11)
    texts = sampled_texts(p, 400, 300, seed=12)
    trace = trace_of_tokens(p, q, texts.tolist())
    lengths = draft_lengths(trace, policy)
    accepted = survival(trace, "token", policy.gamma, lengths)
    weights = next(renewal.block_starts(trace, accepted, [policy.gamma]))
    inner = trace.remaining > policy.gamma  # blocks that no text's end cuts short
    before = np.concatenate([[0, *text[:-1]] for text in texts.tolist()])
    rng = np.random.default_rng(13)
    starts = rng.choice(before[inner], size=200_000, p=weights[inner] / weights[inner].sum())
    exact = drafted_by_the_draft(q, policy, starts, 200_000, seed=14)
    naive = float((weights * lengths)[inner].sum() / weights[inner].sum())
    got = try_policy(trace, "token", policy)
    short = float((weights * (~inner)).sum() / weights.sum())
    # The blocks near a text's end draft less; they are a known share, and bound what they can take away.
    assert exact * (1 - short) * 0.98 <= got.drafted_per_step <= exact * 1.02
    assert abs(naive - exact) > 0.02 * exact


def test_the_frontier_has_fixed_and_adaptive_points():
    p, q = markov_pair(4)
    trace = trace_of_tokens(p, q, sampled_texts(p, 10, 20, seed=1).tolist())
    rows = policy_rows(trace, "block", frontier(trace, "block", [0, 1, 4]))
    kinds = pd.DataFrame(rows)["policy"].value_counts()
    assert kinds["fixed"] == 2
    assert set(kinds.index) == {"fixed", "probability", "entropy"}
    assert {row["threshold"] for row in rows if row["policy"] == "fixed"} == {None}
    del trace.columns["draft_entropy"]
    rows = policy_rows(trace, "token", frontier(trace, "token", [2]))
    assert {row["policy"] for row in rows} == {"fixed", "probability"}


def test_a_greedy_trace_without_the_draft_s_confidence_has_fixed_lengths_alone():
    """Its entropies are 0 and its drafts certain, so that no policy would ever end one."""
    p, q = markov_pair(4)
    trace = trace_of_tokens(p, q, sampled_texts(p, 10, 20, seed=1).tolist())
    trace.columns["log_q"][:] = np.where(trace.columns["draft_argmax"] == 1, 0, -np.inf)
    assert {point.policy.kind for point in frontier(trace, "token", [4])} == {"fixed"}
    for kind, column in (("probability", "draft_confidence"), ("entropy", "draft_entropy")):
        with pytest.raises(ConfigError, match=f"no {column} for policy {kind}. Record it anew"):
            try_policy(trace, "token", Policy(kind, 0.5, 4))


def test_a_part_in_which_the_draft_is_certain_is_no_greedy_trace(monkeypatch):
    """Traces are replayed in parts; the first text here has probability 1 under the draft, the others have not."""
    p, q = markov_pair(4)
    trace = trace_of_tokens(p, q, sampled_texts(p, 3, 10, seed=1).tolist())
    trace.columns["log_q"][:10] = 0
    monkeypatch.setattr(renewal, "CHUNK", 10)
    assert try_policy(trace, "token", Policy("probability", 0.5, 4)).drafted_per_step > 0


def test_gain_over_fixed_by_hand():
    """Fixed lengths at (1 drafted, 1.6 emitted) and (2, 2.0); a policy at 1.5 drafted gains what it has above 1.8."""
    p, q = markov_pair(3)
    (blank,) = replay(trace_of_tokens(p, q, [[0, 1]]), "token", [1])

    def point(kind: str, threshold: float | None, drafted: float, length: float) -> PolicyPoint:
        result = dataclasses.replace(blank, tokens=np.array([length]), steps=np.array([1.0]))
        return PolicyPoint(Policy(kind, threshold, 2), result, drafted)

    points = [point("fixed", None, 2.0, 2.0), point("fixed", None, 1.0, 1.6), point("entropy", 0.5, 1.5, 1.9)]
    points += [point("entropy", 0.1, 0.5, 1.2), point("probability", 0.9, 2.5, 9.0)]
    assert gain_over_fixed(points, "entropy") == pytest.approx((0.1, 0.5))
    assert gain_over_fixed(points, "probability") is None  # beyond the longest fixed draft nothing is known
