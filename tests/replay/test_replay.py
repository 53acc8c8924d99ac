"""Replay against enumeration, against a plain recursion, and against decoding with the real verifiers."""

import dataclasses
import itertools
import math

import numpy as np
import pandas as pd
import pytest

from specbench.core.errors import ArgumentError
from specbench.replay import renewal
from specbench.replay.agreement import Agreement, agreement, joint_p_value
from specbench.replay.renewal import replay
from specbench.replay.simulate import simulate, simulated_steps
from specbench.replay.summary import by_prompt
from specbench.replay.survival import survival
from specbench.replay.trace import Trace
from specbench.rules.block.masked import BlockVerifier
from specbench.rules.token.masked import MaskedVerifier
from tests.helpers.markov_pair import (
    markov_pair,
    outcomes,
    sampled_texts,
    trace_of_tokens,
)

VERIFIERS = {"token": MaskedVerifier, "block": BlockVerifier}


def step_law(p: np.ndarray, q: np.ndarray, rule: str, gamma: int) -> dict[tuple[int, ...], np.ndarray]:
    """P(text of gamma + 1 tokens, tau = k) as {text: [gamma + 1]}, enumerated."""
    law: dict[tuple[int, ...], np.ndarray] = {}
    for draft in itertools.product(range(len(p)), repeat=gamma):
        drawn = np.prod([q[a, b] for a, b in itertools.pairwise((0, *draft))])
        for k, (chance, behind) in enumerate(outcomes(rule, p, q, draft)):
            for rest in itertools.product(range(len(p)), repeat=gamma - k + 1):
                tail = np.prod([p[a, b] for a, b in itertools.pairwise(rest)])
                mass = drawn * chance * behind[rest[0]] * tail
                law.setdefault((*draft[:k], *rest), np.zeros(gamma + 1))[k] += mass
    return law


@pytest.mark.parametrize("rule", ["token", "block"])
@pytest.mark.parametrize(("vocabulary", "gamma"), [(3, 1), (3, 2), (3, 3), (2, 5)])
def test_survival_is_the_enumerated_conditional_law(rule, vocabulary, gamma):
    """For every text: P(tau >= i and the text) / P(the text). Catches a wrong ratio, minimum, or off-by-one row."""
    p, q = markov_pair(vocabulary, seed=gamma)
    for text, masses in step_law(p, q, rule, gamma).items():
        probability = np.prod([p[a, b] for a, b in itertools.pairwise((0, *text))])
        assert masses.sum() == pytest.approx(probability, rel=1e-9)  # the step is lossless
        got = survival(trace_of_tokens(p, q, [text]), rule, gamma)[0]
        assert got == pytest.approx(masses[::-1].cumsum()[::-1] / probability, abs=2e-6)  # the trace is float32


def test_no_rule_accepts_more_than_the_draft_s_mass_that_can_stand():
    """min(p, q) / p of each sequence of tokens."""
    p, q = markov_pair(4)
    trace = trace_of_tokens(p, q, sampled_texts(p, 50, 30, seed=1).tolist())
    token, block = (survival(trace, rule, 12) for rule in ("token", "block"))
    log_rho = trace.columns["log_p"].astype(float) - trace.columns["log_q"].astype(float)
    for start, left in enumerate(trace.remaining.tolist()):
        bound = np.exp(-log_rho[start : start + left][:12].cumsum().clip(min=0))
        assert (block[start, 1 : len(bound) + 1] <= bound + 1e-12).all()
    assert (token <= block + 1e-12).all()
    assert (block - token).max() > 0.1


def plainly(trace: Trace, rule: str, gamma: int) -> dict[str, np.ndarray]:
    """The counts of one text, by a loop over blocks; survival is taken as given."""
    accepted, length = survival(trace, rule, gamma), len(trace)
    limit = int(trace.limits[0])
    weight = np.zeros(length + gamma + 2)
    weight[0] = 1.0
    counts = {name: np.zeros(gamma + 2) for name in ("histogram", "emitted", "full", "possible", "tested")}
    drafted = 0.0
    for t in range(length):
        left, room = length - t, min(gamma, limit - t - 1)
        drafted += weight[t] * room
        for k in range(min(room, left) + 1):
            stays = weight[t] * (accepted[t, k] - (accepted[t, k + 1] if k < min(room, left) else 0.0))
            emitted = min(k + 1, left)
            counts["histogram"][k] += stays
            counts["full"][k] += stays * (room == gamma)
            counts["emitted"][emitted] += stays
            for i in range(1, room + 1):
                counts["possible"][i] += stays
                counts["tested"][i] += stays * (emitted >= i)
            if emitted < left:
                weight[t + emitted] += stays
    return {
        "histogram": counts["histogram"][:-1],
        "full_histogram": counts["full"][:-1],
        "emitted": counts["emitted"][1:],
        "possible": counts["possible"][1:-1],
        "tested": counts["tested"][1:-1],
        "steps": weight[:length].sum(keepdims=True),
        "drafted": np.array([drafted]),
    }


def assert_is_plain(trace: Trace, rule: str, gammas: list[int]) -> None:
    """Replaying finds what ``plainly`` counts of each text: added up, or side by side where it is by text."""
    texts = [trace.texts(i, i + 1) for i in range(len(trace.prompts))]
    for got, gamma in zip(replay(trace, rule, gammas), gammas, strict=True):
        counts = [plainly(text, rule, gamma) for text in texts]
        for name in counts[0]:
            parts = [text_counts[name] for text_counts in counts]
            values = np.concatenate(parts) if name in ("steps", "drafted") else np.sum(parts, axis=0)
            assert getattr(got, name) == pytest.approx(values, abs=1e-9), (name, gamma, trace.limits)
        assert got.gamma == gamma
        assert got.accepted.sum() == pytest.approx((got.histogram * np.arange(gamma + 1)).sum())
        assert (got.emitted * np.arange(1, gamma + 2)).sum() == pytest.approx(len(trace))  # every token is emitted
        assert got.acceptance_length == pytest.approx(len(trace) / got.histogram.sum())


@pytest.mark.parametrize("rule", ["token", "block", "argmax"])
@pytest.mark.parametrize("chunk", [7, 1 << 16])
def test_renewal_is_the_plain_recursion(rule, chunk, monkeypatch):
    """Texts of unequal lengths, one of a single token. Catches bands shared wrongly between gammas, blocks that run
    into the next text, and chunks that are joined wrongly."""
    monkeypatch.setattr(renewal, "CHUNK", chunk)
    p, q = markov_pair(4, seed=2)
    rows = sampled_texts(p, 5, 12, seed=3)
    trace = trace_of_tokens(p, q, [rows[0], rows[1, :1], rows[2, :5], rows[3, :11], rows[4, :2]])
    assert_is_plain(trace, rule, [3, 0, 64, 1, 8])


@pytest.mark.parametrize("rule", ["token", "block"])
def test_renewal_is_the_plain_recursion_behind_stop_tokens(rule):
    """Limits from the text's own length (ended by length) to far beyond it; gammas that share a matrix."""
    p, q = markov_pair(4, seed=2)
    rng = np.random.default_rng(3)
    for length, spare in itertools.product((1, 2, 5, 11), (0, 1, 2, 4, 100)):
        trace = trace_of_tokens(p, q, [rng.integers(4, size=length).tolist()])
        assert_is_plain(dataclasses.replace(trace, limits=np.array([length + spare])), rule, [3, 0, 12, 1, 8])


def test_greedy_drafts_by_hand():
    """Matches 1 1 0 1 1: blocks of gamma 2 start at 0, keep 1 1, emit the third; then keep 1 of the last two."""
    p, q = markov_pair(3)
    trace = trace_of_tokens(p, q, [[0, 1, 2, 0, 1]])
    trace.columns["draft_argmax"][:] = [1, 1, 0, 1, 1]
    (got,) = replay(trace, "argmax", [2])
    assert got.histogram.tolist() == [0, 1, 1]
    assert got.steps.tolist() == [2]
    assert (got.joint[0], got.joint[1], got.conditional[1]) == (1, 1, 1)


def test_a_token_the_draft_never_proposes_ends_every_block():
    p, q = markov_pair(4)
    trace = trace_of_tokens(p, q, [[0, 1, 2, 3, 0, 1]])
    trace.columns["log_q"][2] = -np.inf
    for rule in ("token", "block"):
        accepted = survival(trace, rule, 5)
        assert accepted[0, 3] == accepted[2, 1] == accepted[1, 2] == 0
        assert accepted[3, 1] > 0  # the block behind it knows nothing of it
        assert np.isfinite(accepted).all()


@pytest.mark.parametrize("rule", ["block", "token"])
def test_agreement_with_independent_texts_and_with_the_same_ones(rule):
    """Of steps drawn as the replay has them (test_replay_stops.py decodes): a joint test at level 1e-7. By the other
    rule's replay both tests differ, and the width ratio says that steps scatter beside texts."""
    p, q = markov_pair(8, closeness=0.4, seed=5)
    independent, drawn = (trace_of_tokens(p, q, sampled_texts(p, 700, 40, seed=seed).tolist()) for seed in (6, 7))
    (steps,) = simulated_steps(drawn, survival(drawn, rule, 8), 1)
    points = pd.DataFrame({"prompt": range(700), "tokens": drawn.lengths, "steps": steps})

    def compared(by_rule: str) -> Agreement:
        expected_steps = replay(drawn, by_rule, [8])[0].steps
        tokens, independent_steps = by_prompt(independent, replay(independent, by_rule, [8]))
        return agreement(points.assign(expected_steps=expected_steps), (tokens, independent_steps[:, 0]))

    right, wrong = compared(rule), compared({"token": "block", "block": "token"}[rule])
    assert right.width_ratio > 1
    assert joint_p_value([right.difference_p, right.same_text_p]) > 1e-7
    assert max(wrong.difference_p, wrong.same_text_p) < 1e-7


def test_texts_without_a_rare_rejection_agree():
    """Each of 30 texts takes a 14th step with probability 0.013: in 2 of 3 runs none does. With 0.5 all would not."""
    points = pd.DataFrame({"prompt": range(30), "tokens": 64, "steps": 13, "expected_steps": 13.013})
    right, wrong = (agreement(points, (np.full(30, 64), np.linspace(low, low + 2e-3, 30))) for low in (13.012, 13.5))
    assert min(right.same_text_p, right.difference_p) > 0.1
    assert wrong.difference_p < 1e-4
    assert agreement(points.assign(expected_steps=13.5), None).same_text_p < 1e-4


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"expected_steps": [math.nan, 5.2]}, "expected_steps is nan in line 0. Give a number from 0"),
        ({"steps": [2, -5]}, "steps is -5 in line 1"),
        ({"tokens": [4.0, math.inf]}, "tokens is inf in line 1"),
        ({"steps": [4, 20]}, "steps is 20 for 12 tokens in line 1. Each step adds at least one token"),
        ({"steps": [0, 5]}, "steps is 0 for 4 tokens in line 0"),
        ({"tokens": [2, 5], "steps": [4, 12]}, "steps is 4 for 2 tokens in line 0.* Are columns swapped"),
        ({"expected_steps": [1.7, 12.1]}, "expected_steps is 12.1 for 12 tokens in line 1"),
        ({"steps": ["2", "5"]}, "steps holds .*. Give numbers"),
        ({"prompt": ["a", None]}, "points: no prompt in line 1"),
    ],
    ids=str,
)
def test_counts_that_no_text_has_are_refused(change, says):
    """An unknown count would be left out of the sums, and the p-value would be of other texts."""
    points = pd.DataFrame({"prompt": ["a", "b"], "tokens": [4, 12], "steps": [2, 5], "expected_steps": [1.7, 5.2]})
    assert agreement(points, None).same_text_p is not None
    with pytest.raises(ArgumentError, match=says):
        agreement(points.assign(**change), None)
    with pytest.raises(ArgumentError, match="points: no column steps. Give prompt, tokens"):
        agreement(points.drop(columns="steps"), None)


def test_prompts_may_be_numbered():
    """As in an engine's log, and in the lines of a trace."""
    counts = pd.DataFrame({"tokens": [4, 12, 9], "steps": [2, 5, 4], "expected_steps": [1.7, 5.2, 3.9]})
    named, numbered = (agreement(counts.assign(prompt=prompts), None) for prompts in (["a", "b", "b"], [7, 8, 8]))
    assert numbered == named


@pytest.mark.parametrize("spare", [0, 20], ids=["by length", "behind stop tokens"])
def test_simulated_runs_have_the_replayed_means(spare):
    """Mean steps and kept tokens of 400 runs of 20 texts, z-tests at 1e-9 for each text. Catches draws that use another
    start's probabilities, and a stop token that is never accepted."""
    p, q = markov_pair(4, seed=4)
    trace = trace_of_tokens(p, q, [row[: 10 + i] for i, row in enumerate(sampled_texts(p, 20, 30, seed=8))])
    trace = dataclasses.replace(trace, limits=trace.lengths + spare)
    (exact,) = replay(trace, "block", [5])
    accepted, rng = survival(trace, "block", 5), np.random.default_rng(0)
    taken = [simulate(trace, accepted, rng) for _ in range(400)]
    kept = np.array([run.clip(min=0).sum(axis=1) for run in taken])
    for runs, mean in ((simulated_steps(trace, accepted, 400), exact.steps), (kept, exact.accepted)):
        error = runs.std(axis=0, ddof=1) / np.sqrt(400)
        assert (np.abs(runs.mean(axis=0) - mean) <= 6.5 * np.maximum(error, 1e-3)).all()
    if spare == 0:
        assert {tuple(np.where(run >= 0, run + 1, 0).sum(axis=1)) for run in taken} == {tuple(trace.lengths)}
