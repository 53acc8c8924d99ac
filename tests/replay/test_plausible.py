"""The check of q/p: right traces pass, spoiled ones are warned of."""

import dataclasses

import numpy as np
import pytest

import specbench
from specbench.replay.plausible import FALSE_ALARM, log_evidence, warning
from specbench.replay.trace import Trace
from tests.helpers.markov_pair import markov_pair, sampled_texts, trace_of_tokens


def right(seed: int, texts: int = 40, length: int = 30) -> Trace:
    p, q = markov_pair(8, closeness=0.3, seed=seed)
    return trace_of_tokens(p, q, sampled_texts(p, texts, length, seed=seed + 1000).tolist())


def changed(trace: Trace, **columns: np.ndarray) -> Trace:
    return dataclasses.replace(trace, columns={**trace.columns, **columns})


def test_right_traces_raise_no_warning():
    """300 pairs, each with its own texts; one warning by chance has probability below 300 * 1e-4 = 0.03."""
    assert all(warning(right(seed)) is None for seed in range(300))


def test_the_level_holds_at_the_level():
    """Evidence above log(1 / 0.05) in at most 5% of 400 traces: 6 standard errors above that is 11.5%. Catches a
    product that is no supermartingale, such as one of unequal bets that are picked by hindsight."""
    evidence = np.array([log_evidence(right(seed, 10, 10)) for seed in range(400)])
    assert (evidence > np.log(1 / 0.05)).mean() < 0.115
    assert np.log(1 / FALSE_ALARM) == pytest.approx(9.21, abs=0.01)


def test_a_draft_that_excludes_tokens_is_no_reason_to_warn():
    trace = right(3)
    assert warning(changed(trace, log_q=np.full(len(trace), -np.inf, dtype=np.float32))) is None


@pytest.mark.parametrize("seed", range(5))
def test_spoiled_traces_are_warned_of(seed):
    """1200 tokens; of some the target is nearly sure and of others not, as with text: log evidence of 200 and more."""
    power = np.where(np.arange(32) % 2, 6.0, 0.5)[:, None]
    p, q = (table**power / (table**power).sum(axis=1, keepdims=True) for table in markov_pair(32, 0.6, seed=seed))
    trace = trace_of_tokens(p, q, sampled_texts(p, 40, 30, seed=seed).tolist())
    assert warning(trace) is None
    log_p, log_q = trace.columns["log_p"], trace.columns["log_q"]
    for spoiled in (changed(trace, log_q=np.roll(log_q, 1)), changed(trace, log_p=log_q, log_q=log_p)):
        with pytest.warns(UserWarning, match="toy: The mean of q/p"):
            specbench.replay(spoiled, "token", [1])
        message = warning(spoiled)
        assert message is not None
        assert "swapped" in message
        assert "shifted" in message


def test_texts_sampled_hotter_than_scored_are_warned_of():
    p, q = markov_pair(8, closeness=0.3, seed=1)
    hot = np.sqrt(p) / np.sqrt(p).sum(axis=1, keepdims=True)  # temperature 2
    texts = sampled_texts(hot, 40, 30, seed=2)
    assert warning(trace_of_tokens(p, q, texts.tolist())) is not None
    assert warning(trace_of_tokens(hot, q, texts.tolist())) is None
