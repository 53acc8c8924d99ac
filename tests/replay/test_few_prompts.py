"""Plans of few prompts, of several texts a prompt, and of differences that are uncertain themselves."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from scipy import stats

from specbench.replay.planning import PLAN_SCHEMA, PlannedSetting, compare, prompts_needed, setting
from specbench.replay.renewal import replay
from tests.helpers.markov_pair import markov_pair, sampled_texts, trace_of_tokens


@pytest.mark.parametrize("difference", [0.7, 1.5, 2.5, 6.0])
def test_plans_of_few_prompts_have_their_power(difference):
    """t-tests on n normal prompts of variance 1, by the noncentral t; a plan by normal quantiles has 0.2 at n = 2."""
    count = prompts_needed(1.0, difference, alpha=0.05, power=0.9)
    assert count is not None
    critical = stats.t.ppf(0.975, count - 1)
    assert stats.nct.sf(critical, count - 1, difference * np.sqrt(count)) > 0.85
    if count > 2:  # and no more prompts than that takes
        fewer = stats.nct.sf(stats.t.ppf(0.975, count - 2), count - 2, difference * np.sqrt(count - 1))
        assert fewer < 0.95


def test_texts_of_a_prompt_are_one():
    """Every text twice under its prompt's name: no more prompts, the same influences but for the decoding noise."""
    p, q = markov_pair(4)
    texts = sampled_texts(p, 20, 20, seed=1).tolist()
    once, twice = trace_of_tokens(p, q, texts), trace_of_tokens(p, q, texts + texts)
    twice = dataclasses.replace(twice, prompts=[*once.prompts, *once.prompts])
    a, b = (setting(trace, replay(trace, "block", [4])[0]) for trace in (once, twice))
    assert b.tokens.tolist() == (2 * a.tokens).tolist()
    assert b.steps == pytest.approx(2 * a.steps)
    assert b.influence == pytest.approx(a.influence)
    assert b.noise.sum() == pytest.approx(2 * a.noise.sum(), rel=0.5)  # of two independent runs each


def test_the_ends_of_the_differences_interval():
    """sd of the paired influence 1 over 100 prompts: the difference is known to 1.984 / 10."""
    tokens, steps = np.full(100, 30.0), np.full(100, 10.0)
    spread = np.where(np.arange(100) % 2, 1.0, -1.0) * np.sqrt(0.99)
    first = PlannedSetting("a", tokens, steps, np.zeros(100))
    later = PlannedSetting("b", tokens, np.full(100, 9.0) + spread * 9 / (30 / 9), np.zeros(100))
    row = compare(first, later, alpha=0.05, power=0.9)
    assert set(row) == set(PLAN_SCHEMA.names)
    assert row["difference"] == pytest.approx(1 / 3)
    assert row["difference_high"] - row["difference_low"] == pytest.approx(2 * 0.1984, rel=1e-3)
    assert row["prompts_replayed_least"] < row["prompts_replayed"] < row["prompts_replayed_most"]
    assert row["prompts_replayed_most"] == prompts_needed(1.0, row["difference_low"], alpha=0.05, power=0.9)
    unsure = compare(first, dataclasses.replace(later, steps=later.steps + 0.9), alpha=0.05, power=0.9)
    assert unsure["prompts_replayed_most"] is None
    one = (PlannedSetting(name, tokens[:1], each[:1], each[:1]) for name, each in (("a", steps), ("b", steps - 1)))
    alone = compare(*one, 0.05, 0.9)
    assert alone["prompts_replayed"] is alone["difference_low"] is None
