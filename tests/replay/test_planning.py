"""Intervals of replayed acceptance over prompts, and how many prompts a comparison needs."""

import dataclasses

import numpy as np
import pytest
from scipy import stats

from specbench.core.errors import ArgumentError, ConfigError
from specbench.replay.planning import (
    PlannedSetting,
    compare,
    plan,
    prompts_needed,
    rules_compared,
    setting,
)
from specbench.replay.renewal import replay
from specbench.replay.summary import replay_rows
from specbench.replay.survival import survival
from specbench.rules import RuleInfo, replayable
from tests.helpers.markov_pair import markov_pair, sampled_texts, trace_of_tokens


def test_texts_of_a_prompt_are_one():
    """Texts that are there twice are no more prompts, and have the same influences but for the decoding noise."""
    p, q = markov_pair(4)
    texts = sampled_texts(p, 40, 20, seed=1).tolist()
    once = trace_of_tokens(p, q, texts)
    twice = trace_of_tokens(p, q, texts + texts, prompts=[*once.prompts, *once.prompts])
    a, b = (setting(trace, "block", replay(trace, "block", [4])[0]) for trace in (once, twice))
    assert b.tokens.tolist() == (2 * a.tokens).tolist()
    assert b.steps == pytest.approx(2 * a.steps)
    assert b.influence == pytest.approx(a.influence)
    assert b.noise.sum() == pytest.approx(2 * a.noise.sum(), rel=0.5)  # of two independent runs each


def test_a_rule_that_is_not_registered_is_compared_too():
    """As the rule of a user's verifier, which protocol=replay takes from the verifier itself."""
    p, q = markov_pair(4)
    trace = trace_of_tokens(p, q, sampled_texts(p, 20, 10, seed=1).tolist())
    own = RuleInfo(name="lazy", title="lazy rule", token_cost=lambda log_rho: np.maximum(log_rho, 0) + 0.5)
    rows = plan(trace, [*replayable(), own], [2], alpha=0.05, power=0.9)
    assert [(row.first, row.second) for row in rows][1:] == [
        ("token, gamma 2", "lazy, gamma 2"),
        ("block, gamma 2", "lazy, gamma 2"),
    ]
    assert all(row.difference < 0 for row in rows[1:])


def test_rows_of_a_text_too_short_for_its_gamma():
    p, q = markov_pair(3)
    (row,) = replay_rows(trace := trace_of_tokens(p, q, [[1, 2]]), replay(trace, "token", [3]))
    assert row["joint_rates"][1:] == row["conditional_rates"][1:] == [None, None]
    assert row["full_acceptance_length"] is None
    assert row["acceptance_length_low"] is row["acceptance_length_high"] is None  # of one prompt


def test_prompts_needed_by_hand():
    # (1.974017 + 1.286556)^2 = 10.6313 at 169 degrees of freedom; variance 4, difference 0.5: 170.1, so 171 by t
    assert prompts_needed(4.0, 0.5, alpha=0.05, power=0.9) == 171
    assert prompts_needed(4.0, -0.5, alpha=0.05, power=0.9) == 171
    assert prompts_needed(1e-9, 1.0, alpha=0.05, power=0.9) == 2
    assert prompts_needed(4.0, 0.0, alpha=0.05, power=0.9) is None
    assert prompts_needed(1.0, 4e-16, alpha=0.05, power=0.9) is None  # of rounding


def test_a_plan_has_the_power_it_promises():
    """Paired replays of the planned number of prompts tell two settings apart in 90% of 300 tries: within 80..97%.

    Binomial(300, 0.9) leaves those bounds with probability below 1e-6. Catches a forgotten square, a one-sided
    quantile, or an error of the wrong scale.
    """
    rng = np.random.default_rng(23)
    tokens = rng.integers(30, 60, size=4000).astype(float)
    steps = tokens / 3 + rng.normal(0, 3, size=4000)  # the texts' own variance, which pairing takes out
    later = steps - 0.5 + rng.normal(0, 2, size=4000)
    noise = np.full(4000, 4.0)
    first, second = (PlannedSetting(name, tokens, counts, noise) for name, counts in (("a", steps), ("b", later)))
    row = compare(first, second, alpha=0.05, power=0.9)
    needed = row.prompts_replayed
    assert 100 < needed < 300
    assert row.prompts_decoded > 2 * needed
    detections, influence = 0, second.influence - first.influence
    for _ in range(300):
        chosen = rng.choice(4000, size=needed)
        difference = tokens[chosen].sum() / later[chosen].sum() - tokens[chosen].sum() / steps[chosen].sum()
        detections += int(abs(difference) > 1.959964 * influence[chosen].std(ddof=1) / np.sqrt(needed))
    assert 240 <= detections <= 291


def test_a_plan_compares_neighbours_and_rules():
    p, q = markov_pair(4)
    trace = trace_of_tokens(p, q, sampled_texts(p, 10, 20, seed=1).tolist())
    rows = plan(trace, replayable(), [4, 0, 1], alpha=0.05, power=0.9)
    assert [(row.first, row.second) for row in rows] == [
        ("token, gamma 1", "token, gamma 4"),
        ("block, gamma 1", "block, gamma 4"),
        ("token, gamma 1", "block, gamma 1"),
        ("token, gamma 4", "block, gamma 4"),
    ]
    assert rows[2].prompts_replayed is None  # at gamma 1 the rules are one
    assert rows[0].difference > 0
    numbers = f"{rows[3].difference:.2f} [{rows[3].difference_low:.2f}, {rows[3].difference_high:.2f}]"
    assert f"block, gamma 4: {numbers} more tokens a step than token, gamma 4" in rules_compared(rows)
    assert rules_compared(rows).count("more tokens") == 2
    assert rules_compared([]) == ""


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


def test_the_ends_of_the_differences_interval():
    """sd of the paired influence 1 over 100 prompts: the difference is known to 1.984 / 10."""
    tokens, steps = np.full(100, 30.0), np.full(100, 10.0)
    spread = np.where(np.arange(100) % 2, 1.0, -1.0) * np.sqrt(0.99)
    first = PlannedSetting("a", tokens, steps, np.zeros(100))
    later = PlannedSetting("b", tokens, np.full(100, 9.0) + spread * 9 / (30 / 9), np.zeros(100))
    row = compare(first, later, alpha=0.05, power=0.9)
    assert row.difference == pytest.approx(1 / 3)
    assert row.difference_high - row.difference_low == pytest.approx(2 * 0.1984, rel=1e-3)
    assert row.prompts_replayed_least < row.prompts_replayed < row.prompts_replayed_most
    assert row.prompts_replayed_most == prompts_needed(1.0, row.difference_low, alpha=0.05, power=0.9)
    unsure = compare(first, dataclasses.replace(later, steps=later.steps + 0.9), alpha=0.05, power=0.9)
    assert unsure.prompts_replayed_most is None
    one = (
        PlannedSetting(name, tokens[:1], counts[:1], counts[:1]) for name, counts in (("a", steps), ("b", steps - 1))
    )
    alone = compare(*one, 0.05, 0.9)
    assert alone.prompts_replayed is alone.difference_low is None


def test_unknown_rules_and_gammas_are_refused():
    p, q = markov_pair(3)
    trace = trace_of_tokens(p, q, [[0, 1]])
    with pytest.raises(ArgumentError, match="rule=tree"):
        survival(trace, "tree", 2)
    with pytest.raises(ArgumentError, match="gamma=65"):
        survival(trace, "token", 65)
    del trace.columns["draft_argmax"]
    with pytest.raises(ConfigError, match="^protocol.trace=a/trace.parquet: no draft_argmax"):
        survival(dataclasses.replace(trace, path="a/trace.parquet").texts(0, 1), "argmax", 2)
