"""Texts that end by a stop token: decoding drafts past their end, and replay counts what was kept of it."""

import dataclasses

import numpy as np
import pytest
from scipy import stats

from specbench.decoding import Completion, Decoder, Request
from specbench.replay.agreement import joint_p_value
from specbench.replay.renewal import Replayed, replay
from specbench.replay.summary import replay_rows
from specbench.replay.trace import Trace
from specbench.sampling import SamplingParams
from tests.helpers.markov_pair import MarkovDrafter, MarkovModel, markov_pair, trace_of_tokens
from tests.replay.test_replay import VERIFIERS

STOP = 7
LIMIT = 12
GROUP = 30
LEVEL = 1e-6


def with_limits(trace: Trace, limits: list[int]) -> Trace:
    return dataclasses.replace(trace, limits=np.array(limits))


def decoded(p: np.ndarray, q: np.ndarray, rule: str, gamma: int, count: int) -> list[Completion]:
    """The real loop and verifiers; token 7 ends a text, most of which have fewer than the 12 tokens allowed."""
    decoder = Decoder(MarkovModel(p), MarkovDrafter(q), VERIFIERS[rule](), gamma, frozenset({STOP}))
    return decoder.run([Request(str(i), (1, 0), 7000 * gamma + i, SamplingParams(), LIMIT) for i in range(count)])


def counted(completions: list[Completion], gamma: int) -> np.ndarray:
    """Steps by kept accepted tokens, steps by emitted tokens, drafted tokens, tested positions: a step log's counts."""
    log = np.array([(s.num_draft_tokens, s.num_accepted, s.num_emitted) for c in completions for s in c.steps])
    drafted, accepted, emitted = log.T
    kept = np.minimum(accepted, emitted)
    tested = [((drafted >= i) & (emitted >= i)).sum() for i in range(1, gamma + 1)]
    possible = [(drafted >= i).sum() for i in range(1, gamma + 1)]
    full = kept[drafted == gamma]
    counts = [np.bincount(values, minlength=gamma + 2)[: gamma + 2] for values in (kept, emitted, full)]
    return np.array([*counts[0][:-1], *counts[1][1:], *counts[2][:-1], drafted.sum(), kept.sum(), *tested, *possible])


def expected(result: Replayed) -> np.ndarray:
    totals = [result.drafted.sum(), result.accepted.sum()]
    return np.array(
        [*result.histogram, *result.emitted, *result.full_histogram, *totals, *result.tested, *result.possible]
    )


def p_values(differences: np.ndarray) -> list[float]:
    """Two-sided t-tests that each column [groups, counts] has mean 0; columns that are 0 throughout say nothing."""
    differences = differences[:, (np.abs(differences) > 1e-9).any(axis=0)]
    return stats.ttest_1samp(differences, 0.0).pvalue.tolist()


@pytest.mark.cases(1)
@pytest.mark.parametrize("rule", VERIFIERS)
def test_decoding_counts_what_replay_expects(rule, thorough):
    """Given the decoded texts, every count of the step log has the replayed mean, at gamma 1, 4 and 8; or 4 alone.

    t-tests over groups of 30 texts, all counts of all gammas joint at level 1e-6 (Bonferroni; the groups' sums are
    near enough to normal). Power: a replay that takes the texts to end by length, which was the behaviour once, has a
    joint p-value below 1e-15 here, and so has the other rule's at gamma 4 and 8.
    """
    p, q = markov_pair(8, closeness=0.4, seed=5)
    gammas, count = (1, 4, 8) if thorough else (4,), 900
    values: dict[str, list[float]] = {"right": [], "by length": [], "other rule": []}
    for gamma in gammas:
        completions = decoded(p, q, rule, gamma, count)
        texts = [c.token_ids for c in completions]
        endings = [(c.finished, len(c.token_ids) == LIMIT) for c in completions]
        assert min(endings.count(("stop", False)), endings.count(("length", True))) > count / 8
        assert endings.count(("stop", True)) > 10  # at the very last place, where no stop token can be drafted
        differences: dict[str, list[np.ndarray]] = {name: [] for name in values}
        for group in np.split(np.arange(count), count // GROUP):
            trace = trace_of_tokens(p, q, [texts[i] for i in group])
            right = with_limits(trace, [LIMIT] * len(group))
            other = {"token": "block", "block": "token"}[rule]
            counts = counted([completions[i] for i in group], gamma)
            for name, replayed in (
                ("right", replay(right, rule, [gamma])[0]),
                ("by length", replay(trace, rule, [gamma])[0]),
                ("other rule", replay(right, other, [gamma])[0]),
            ):
                differences[name].append(counts - expected(replayed))
        for name, rows in differences.items():
            values[name] += p_values(np.array(rows))
    assert joint_p_value(values["right"]) > LEVEL
    assert joint_p_value(values["by length"]) < (1e-15 if thorough else LEVEL)
    assert joint_p_value(values["other rule"]) < LEVEL


def test_a_stop_token_by_hand():
    """p = q: all is accepted. Text of 3 tokens and a stop, gamma 8: one step, which drafts 8 and keeps 3."""
    p, _ = markov_pair(4)
    trace = trace_of_tokens(p, p, [[0, 1, 2]])
    (stopped,) = replay(with_limits(trace, [20]), "block", [8])
    assert stopped.histogram.round(9).tolist() == [0, 0, 0, 1, 0, 0, 0, 0, 0]
    assert stopped.emitted.round(9).tolist() == [0, 0, 1, 0, 0, 0, 0, 0, 0]
    assert (stopped.drafted[0], stopped.accepted[0], stopped.steps[0]) == pytest.approx((8, 3, 1))
    assert stopped.acceptance_length == pytest.approx(3)
    assert stopped.variance == pytest.approx(0)
    assert stopped.conditional[:3].tolist() == pytest.approx([1, 1, 1])
    assert np.isnan(stopped.conditional[3:]).all()  # behind the stop token nothing is tested
    assert stopped.joint.tolist() == pytest.approx([1, 1, 1, 0, 0, 0, 0, 0])
    (row,) = replay_rows(with_limits(trace, [20]), [stopped])
    assert (row["drafted"], row["accepted"], row["acceptance_rate"]) == pytest.approx((8, 3, 3 / 8))
    (by_length,) = replay(trace, "block", [8])
    assert (by_length.drafted[0], by_length.accepted[0]) == pytest.approx((2, 2))
    (close,) = replay(with_limits(trace, [5]), "block", [8])  # room for 4 drafted tokens
    assert (close.drafted[0], close.accepted[0]) == pytest.approx((4, 3))
