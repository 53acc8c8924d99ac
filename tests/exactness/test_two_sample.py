"""Two samples of texts: false alarms, power, bounds and forks, on laws that are known."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from specbench.exactness.two_sample.bets import LIKELIEST, RARER, BetResults, blocks, evidence
from specbench.exactness.two_sample.bounds import ALL, FEWEST, bias_rows, class_bias
from specbench.exactness.two_sample.forks import EngineFork, least_margin, parting, per_thousand
from specbench.exactness.two_sample.pairs import BEHIND, END, SPECULATIVE, TextPairs, numbered, text_pairs, words_of
from specbench.exactness.two_sample.power import TOWARDS_LIKELIEST, _Law, power_rows

PROMPTS, VOCABULARY, LENGTH = 4, 30, 3


class Law:
    """Tokens given the prompt and the previous token; ``bias`` moves so much probability to the likeliest token."""

    def __init__(self):
        rng = np.random.default_rng(0)
        self.of_prompt = rng.gumbel(size=(PROMPTS, VOCABULARY))
        self.after = 1.5 * rng.gumbel(size=(VOCABULARY, VOCABULARY))

    def drawn(self, rng: np.random.Generator, prompts: np.ndarray, bias: float = 0.0) -> np.ndarray:
        texts = np.zeros((len(prompts), LENGTH), dtype=np.int64)
        for place in range(LENGTH):
            logits = 1.5 * self.of_prompt[prompts] if place == 0 else self.after[texts[:, place - 1]]
            probs = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
            most, rows = probs.max(axis=1), np.arange(len(probs))
            probs *= (1 - np.minimum(bias, 1 - most) / (1 - most))[:, None]
            probs[rows, logits.argmax(axis=1)] += 1 - probs.sum(axis=1)
            texts[:, place] = (probs.cumsum(axis=1) < rng.random((len(probs), 1))).sum(axis=1).clip(max=VOCABULARY - 1)
        return texts

    def pairs(self, seed: int, count: int, bias: float = 0.0) -> TextPairs:
        rng, prompts = np.random.default_rng(seed), np.arange(count) % PROMPTS
        both = self.drawn(rng, prompts), self.drawn(rng, prompts, bias)
        return TextPairs(prompts, np.stack(both, axis=1))


@pytest.mark.parametrize("share", [0.02, 0.1])
def test_a_bias_of_few_whole_texts_is_below_the_bound(share):
    """Some of 100 texts are of rare tokens alone: 2 or 10 on average, and none of 2 in 13% of runs.

    Of 4000 bounds at 99%, 40 may be too small on average, and 77 or more with a chance below 1e-6.
    """
    rng, below = np.random.default_rng(0), 0
    for _ in range(4000):
        classes = np.full((100, 2, 4), LIKELIEST)
        classes[rng.random(100) < share, SPECULATIVE] = RARER
        below += class_bias(classes, 0.99)[1] < share
    assert below < 77


def test_false_alarms_are_as_rare_as_stated(thorough):
    """At 5%: more than 20 of 200 sound engines, and 10 of 60, are rejected with a probability below 1e-3."""
    law = Law()
    seeds, most = (200, 20) if thorough else (60, 10)
    rejected = [evidence(law.pairs(seed, 150)).rejected_at(0.05) is not None for seed in range(seeds)]
    assert sum(rejected) <= most


def test_the_wealth_of_a_fair_bet_is_one_on_average(thorough):
    """Labels swapped at random within pairs: E[W] is 1 whatever the texts are, here very unequal ones."""
    pairs, rng, wealth = Law().pairs(1, 60, bias=0.6), np.random.default_rng(2), []
    for _ in range(400 if thorough else 100):
        swapped = rng.random(len(pairs.prompts)) < 0.5
        tokens = np.where(swapped[:, None, None], pairs.tokens[:, ::-1], pairs.tokens)
        wealth.append(math.exp(evidence(TextPairs(pairs.prompts, tokens)).log_wealth[-1]))
    assert np.mean(wealth) < 1 + 4 * np.std(wealth) / len(wealth) ** 0.5


def test_evidence_of_earlier_pairs_does_not_depend_on_later_ones():
    pairs = Law().pairs(3, 200, bias=0.2)
    whole = evidence(pairs).log_wealth
    for count in (1, 16, 17, 100):
        np.testing.assert_allclose(
            evidence(TextPairs(pairs.prompts[:count], pairs.tokens[:count])).log_wealth, whole[:count], atol=1e-9
        )
    assert blocks(40, 1.15)[0] == (0, 16)


@pytest.mark.parametrize("bias", [0.3, 1.0])
def test_gross_biases_are_found_in_a_few_hundred_texts(bias):
    assert all(evidence(Law().pairs(seed, 200, bias)).rejected_at(1e-4) for seed in range(5))


def test_a_bias_of_the_stated_size_is_found():
    """The power is simulated on sampled texts; here fresh texts of the true law have the bias that it names."""
    law = Law()
    towards, own_direction = power_rows(law.pairs(5, 600), 1e-4, 0.99, 0)
    assert towards.direction == TOWARDS_LIKELIEST
    assert 0.05 < towards.bias < 0.25
    assert own_direction.bias is None or own_direction.bias > towards.bias / 2
    rejections = [
        evidence(law.pairs(100 + seed, 600, towards.bias)).rejected_at(1e-4) is not None for seed in range(12)
    ]
    assert sum(rejections) >= 10  # of a power of 0.99: fewer have a probability of 2e-4
    rarely = [evidence(law.pairs(200 + seed, 600, towards.bias / 4)).rejected_at(1e-4) for seed in range(4)]
    assert sum(pairs_needed is not None for pairs_needed in rarely) <= 2


def test_too_few_texts_find_no_bias():
    assert [row.bias for row in power_rows(Law().pairs(5, 8), 1e-4, 0.99, 0)] == [None, None]


def test_bounds_hold_the_truth():
    """First tokens of one prompt, whose classes are known: the bound at 90% is below the truth in at most 10%."""
    coverage, truth = 0, 0.1  # total variation between (0.6, 0.25, 0.15) and (0.5, 0.3, 0.2)
    for seed in range(100):
        rng = np.random.default_rng(seed)
        sides = [rng.choice(3, size=(300, 1), p=p) + 1 for p in ((0.6, 0.25, 0.15), (0.5, 0.3, 0.2))]
        observed, bound = class_bias(np.stack(sides, axis=1), 0.9)
        assert 0 <= observed <= bound <= 1
        coverage += bound >= truth
    assert coverage >= 90


def test_bounds_of_few_tokens_say_nothing():
    few = np.ones((FEWEST - 1, 2, 1), dtype=np.int64)
    assert class_bias(few, 0.99) == (None, None)
    alike = np.ones((FEWEST, 2, 1), dtype=np.int64)
    assert class_bias(alike, 0.99) == (0.0, pytest.approx(math.log(100) / FEWEST))


def test_one_pair_of_long_texts_bounds_nothing():
    """A checkpoint knows the classes of its tokens, however few texts a prompt has."""
    one = np.full((1, 2, FEWEST), LIKELIEST)
    one[0, SPECULATIVE, ::2] = RARER
    assert class_bias(one, 0.99) == (0.5, 1.0)


def test_rows_say_entropy_and_places():
    pairs = Law().pairs(7, 800)
    rows = bias_rows(pairs, evidence(pairs), list("abcd"), 0.99)
    assert [(row.prompt, row.position) for row in rows[:4]] == [(ALL, None), (ALL, 1), (ALL, 2), (ALL, 3)]
    assert [row.prompt for row in rows[4:]] == list("abcd")
    logits = 1.5 * Law().of_prompt
    probs = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    assert rows[1].entropy == pytest.approx(float(-(probs * np.log(probs)).sum(axis=1).mean()), abs=0.1)
    assert rows[1].classified > rows[3].classified
    assert rows[0].bound < 0.1


def test_rare_beginnings_are_classified_by_the_last_token():
    """First tokens that never repeat, and then a fixed sequence: no two texts begin likewise."""
    tokens = np.arange(400).reshape(200, 2, 1) + 10
    pairs = TextPairs(np.zeros(200, dtype=np.int64), np.concatenate([tokens, np.full((200, 2, 2), [1, 2])], axis=2))
    classes = evidence(pairs).classes
    assert (classes[50:, :, 2] == LIKELIEST).all()  # after token 1 always token 2
    assert (classes[50:, :, 1] == 0).all()  # nothing is known of what follows a token that is new


def test_what_a_checkpoint_says_of_tokens_is_bet_on():
    """Tokens that never repeat, of which speculative texts have those that the draft makes likelier."""
    rng, tokens = np.random.default_rng(0), np.arange(1200).reshape(300, 2, 2)
    ratios = np.where(rng.random(tokens.shape) < np.array([0.3, 0.7])[:, None], 2, 1)
    prompts = np.zeros(300, dtype=np.int64)
    assert evidence(TextPairs(prompts, tokens)).rejected_at(1e-4) is None
    assert evidence(TextPairs(prompts, tokens, None, ratios)).rejected_at(1e-4) is not None
    assert evidence(TextPairs(prompts[:4], tokens[:4], None, ratios[:4])).rejected_at(1e-4) is None
    assert (evidence(TextPairs(prompts, tokens, ratios)).classes == ratios).all()


def test_texts_that_are_drawn_again_keep_what_a_checkpoint_says_of_them():
    sampled = Law().pairs(7, 200)
    pairs = replace(sampled, classes=sampled.tokens % 3 + 1, ratios=sampled.tokens % 5 + 1)
    drawn = _Law(pairs).drawn(np.random.default_rng(0), 0.2, TOWARDS_LIKELIEST)
    in_sample = drawn.tokens <= sampled.tokens.max()  # others stand for tokens that no text has
    assert in_sample.mean() > 0.5
    assert (drawn.classes[in_sample] == drawn.tokens[in_sample] % 3 + 1).all()
    assert (drawn.ratios[in_sample] == drawn.tokens[in_sample] % 5 + 1).all()


def test_texts_become_numbers():
    pairs = text_pairs([0, 0], [[5, 7], [5, 9, 9]], [[5, 7, 8, 1], []], 3)
    assert pairs.tokens[0, 0].tolist() == [0, 1, END]
    assert pairs.tokens[1, 1].tolist() == [END, BEHIND, BEHIND]
    assert pairs.tokens[0, 1].tolist() == [0, 1, 2]  # cut after three tokens
    assert len(set(pairs.beginnings[:, :, 0].ravel().tolist())) == 1
    assert pairs.beginnings[0, 0, 1] == pairs.beginnings[1, 0, 1] == pairs.beginnings[0, 1, 1]
    assert pairs.beginnings[0, 0, 2] == pairs.beginnings[0, 1, 2] != pairs.beginnings[1, 0, 2]
    assert numbered(np.array([3, 1, 3]), np.array([0, 0, 1])).tolist() == [1, 0, 2]
    assert "".join(words_of(" two  words, 3\n")) == " two  words, 3\n"


def test_no_pairs_are_no_evidence():
    nothing: BetResults = evidence(text_pairs([], [], [], 3))
    assert nothing.rejected_at(0.05) is None


def test_forks_and_margins():
    assert parting([1, 2, 3], [1, 2, 3]) is None
    assert parting([1, 2, 3], [1, 4, 3]) == 1
    assert parting([1, 2], [1, 2, 3]) == 2
    assert least_margin([-0.1, math.log(0.75)], 1) == pytest.approx(math.log(3))
    assert least_margin([0.0, 0.0], 1) is None  # an engine that returns 0 for every greedy token
    assert least_margin(None, 0) is None
    forks = [EngineFork("a", "speculative", 400), EngineFork("b", "speculative", 100, 100)]
    rate, high = per_thousand(forks)
    assert rate == pytest.approx(2)
    assert rate < high
    same = [EngineFork(prompt, "speculative", 48) for prompt in "abcdefgh"]
    assert per_thousand(same) == (0, pytest.approx(1000 / 48 * (100 ** (1 / 8) - 1)))
    assert per_thousand([EngineFork("a", "speculative", 0)]) == (0, 1000)
    assert per_thousand([EngineFork("a", "speculative", 1, 1)]) == (1000, 1000)


@pytest.mark.parametrize("share", [0.8, 0.9])
def test_the_rate_of_forks_of_unlike_prompts_is_below_its_bound(share):
    """A share of prompts parts at the first token, the others never: at most 5 of 500 bounds are too small on average.

    22 or more have a chance below 1e-7. Bounds over tokens are in 46 and in 56.
    """
    rng, below, truth = np.random.default_rng(0), 0, 1000 * share / (share + 48 * (1 - share))
    parts, same = EngineFork("a", "speculative", 1, 1), EngineFork("b", "speculative", 48)
    for _ in range(500):
        _, high = per_thousand([parts if early else same for early in rng.random(12) < share])
        below += high < truth
    assert below < 22
