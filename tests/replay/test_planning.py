"""Intervals of replayed acceptance over prompts, and how many prompts a comparison needs."""

from __future__ import annotations

import numpy as np
import pytest

from specbench.core.errors import ArgumentError, ConfigError
from specbench.replay.planning import PlannedSetting, compare, plan, prompts_needed, rules_compared
from specbench.replay.renewal import replay
from specbench.replay.summary import lengths_with_intervals, replay_rows
from specbench.replay.survival import survival
from specbench.replay.trace import Trace
from tests.helpers.markov_pair import markov_pair, sampled_texts, trace_of_tokens


def test_samples_of_a_prompt_are_resampled_together():
    """Every text twice is no new information: the interval must not shrink."""
    p, q = markov_pair(4)
    texts = sampled_texts(p, 40, 20, seed=1).tolist()
    once, twice = trace_of_tokens(p, q, texts), trace_of_tokens(p, q, texts + texts)
    twice = Trace(twice.identity, [*once.prompts, *once.prompts], twice.starts, twice.tokens, twice.columns)
    (a,), (b,) = (lengths_with_intervals(each, replay(each, "token", [3])) for each in (once, twice))
    assert (a.low, a.value, a.high) == pytest.approx((b.low, b.value, b.high))


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
    first, second = (PlannedSetting(name, tokens, each, noise) for name, each in (("a", steps), ("b", later)))
    row = compare(first, second, alpha=0.05, power=0.9)
    needed = row["prompts_replayed"]
    assert 100 < needed < 300
    assert row["prompts_decoded"] > 2 * needed
    found, influence = 0, second.influence - first.influence
    for _ in range(300):
        chosen = rng.choice(4000, size=needed)
        difference = tokens[chosen].sum() / later[chosen].sum() - tokens[chosen].sum() / steps[chosen].sum()
        found += int(abs(difference) > 1.959964 * influence[chosen].std(ddof=1) / np.sqrt(needed))
    assert 240 <= found <= 291


def test_a_plan_compares_neighbours_and_rules():
    p, q = markov_pair(4)
    rows = plan(trace_of_tokens(p, q, sampled_texts(p, 10, 20, seed=1).tolist()), [4, 0, 1], alpha=0.05, power=0.9)
    assert [(row["first"], row["second"]) for row in rows] == [
        ("token, gamma 1", "token, gamma 4"),
        ("block, gamma 1", "block, gamma 4"),
        ("token, gamma 1", "block, gamma 1"),
        ("token, gamma 4", "block, gamma 4"),
    ]
    assert rows[2]["prompts_replayed"] is None  # at gamma 1 the rules are one
    assert rows[0]["difference"] > 0


def test_rules_are_compared_in_words():
    p, q = markov_pair(4)
    planned = plan(trace_of_tokens(p, q, sampled_texts(p, 10, 20, seed=1).tolist()), [1, 4], alpha=0.05, power=0.9)
    row = next(each for each in planned if (each["first"], each["second"]) == ("token, gamma 4", "block, gamma 4"))
    found = f"{row['difference']:.2f} [{row['difference_low']:.2f}, {row['difference_high']:.2f}]"
    assert f"block, gamma 4: {found} more tokens a step than token, gamma 4" in rules_compared(planned)
    assert rules_compared(planned).count("more tokens") == 2
    assert rules_compared([]) == ""


def test_unknown_rules_and_gammas_are_refused():
    p, q = markov_pair(3)
    trace = trace_of_tokens(p, q, [[0, 1]])
    with pytest.raises(ArgumentError, match="rule=tree"):
        survival(trace, "tree", 2)
    with pytest.raises(ArgumentError, match="gamma=65"):
        survival(trace, "token", 65)
    del trace.columns["draft_argmax"]
    with pytest.raises(ConfigError, match="no draft_argmax"):
        survival(trace, "argmax", 2)
