"""Every published number against step logs small enough to count by hand."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from specbench.metrics.acceptance import acceptance_fields, position_estimates
from specbench.metrics.empirical import distance_check, pooled
from specbench.metrics.intervals import columns, coverage, ratio_of_sums, ratios_of_sums

GAMMA = 3


def log(*steps: tuple[str, int, int, int]) -> pd.DataFrame:
    columns = ["prompt", "num_draft_tokens", "num_accepted", "num_emitted"]
    return pd.DataFrame(steps, columns=columns).assign(step=range(len(steps)))


NOTHING_DRAFTED = log(("a", 0, 0, 1), ("a", 0, 0, 1))
ALL_ACCEPTED = log(("a", 3, 3, 4), ("b", 3, 3, 4))
# Prompt b was accepted whole, and its second token was the stop token: 2 of 4 tokens were emitted.
STOPPED = log(("a", 3, 1, 2), ("a", 3, 0, 1), ("b", 3, 3, 2))
# Prompt a ends by length: its last blocks drafted 2 and 0.
SHORTENED = log(("a", 3, 2, 3), ("a", 2, 2, 3), ("a", 0, 0, 1), ("b", 3, 0, 1), ("b", 1, 0, 1))
LOGS = pytest.mark.parametrize(
    ("steps", "histogram", "joint", "conditional"),
    [
        (NOTHING_DRAFTED, [2, 0, 0, 0], [None] * 3, [None] * 3),
        (ALL_ACCEPTED, [0, 0, 0, 2], [1, 1, 1], [1, 1, 1]),
        (STOPPED, [1, 1, 0, 1], [2 / 3, 1 / 3, 1 / 3], [2 / 3, 1 / 2, 1]),
        # Position 1: 4 blocks drafted it, 2 accepted. Position 2: 3 drafted it, 2 of them after an accepted first, both
        # accepted. Position 3: two drafted it, one of them after two accepted, none accepted.
        (SHORTENED, [3, 0, 2, 0], [2 / 4, 2 / 3, 0], [2 / 4, 1, 0]),
    ],
    ids=["nothing drafted", "all accepted", "cut by a stop token", "shortened last block"],
)


@LOGS
def test_histogram_and_rates_by_position(steps, histogram, joint, conditional):
    fields = acceptance_fields(steps, GAMMA)
    assert fields["acceptance_histogram"] == histogram
    assert (fields["joint_rates"], fields["conditional_rates"]) == (joint, conditional)
    for estimates, values in zip(position_estimates(steps, GAMMA), (joint, conditional), strict=True):
        assert [estimate and estimate.value for estimate in estimates] == pytest.approx(values)


def test_rates_by_position_are_resampled_by_prompt():
    """Many steps of one prompt are no more evidence than the prompt itself."""
    few = log(("a", 3, 1, 2), ("b", 3, 3, 4), ("c", 3, 0, 1))
    many = pd.concat([few] * 10)
    ends = [
        [(estimate.low, estimate.high) for estimate in position_estimates(steps, GAMMA)[0]] for steps in (few, many)
    ]
    assert np.allclose(ends[0], ends[1])
    assert ends[0][0] == (0, 1)


def test_fields_of_a_row():
    """Pooled, not a mean of per-prompt ratios; tokens after the stop token count as accepted, not as emitted."""
    fields = acceptance_fields(STOPPED, GAMMA)
    assert (fields["tokens"], fields["steps"], fields["drafted"], fields["accepted"]) == (5, 3, 9, 4)
    assert fields["acceptance_rate"] == pytest.approx(4 / 9)
    assert fields["acceptance_length"] == pytest.approx(4 / 3 + 1)
    assert fields["acceptance_rate_low"] <= 4 / 9 <= fields["acceptance_rate_high"]


def test_fields_of_a_row_without_drafts():
    fields = acceptance_fields(NOTHING_DRAFTED, 0)
    assert [fields[f"acceptance_rate{end}"] for end in ("", "_low", "_high")] == [None] * 3
    assert [fields[f"acceptance_length{end}"] for end in ("", "_low", "_high")] == [1, None, None]
    assert (fields["acceptance_histogram"], fields["joint_rates"], fields["conditional_rates"]) == ([2], [], [])


# --- Intervals ---


@pytest.mark.parametrize("units", [4, 8, 16])
def test_what_intervals_over_few_units_hold(units):
    """600 means of normal units, whose share inside has a standard deviation of at most 0.016: a band of 3 of them."""
    rng = np.random.default_rng(units)
    intervals = [ratio_of_sums(rng.normal(10, 1, size=units), np.ones(units)) for _ in range(600)]
    inside = np.mean([interval is not None and interval.low <= 10 <= interval.high for interval in intervals])
    assert inside == pytest.approx(coverage(units), abs=0.048)
    assert coverage(1) == 0 < coverage(units) < coverage(2 * units) < 0.95


def test_ratio_pools_units_of_different_size():
    estimate = ratio_of_sums(np.array([1, 90]), np.array([10, 100]))
    assert estimate.value == pytest.approx(91 / 110)
    assert estimate.low == pytest.approx(0.1)  # both resampled units are the first
    assert estimate.high == pytest.approx(0.9)


@pytest.mark.parametrize("dependent", [False, True], ids=["independent tokens", "one fate a prompt"])
def test_interval_of_a_known_case(dependent):
    """400 prompts of 10 tokens, accepted with 0.6. Where a prompt's tokens share one fate, 400 things were observed."""
    rng = np.random.default_rng(1)
    accepted = 10 * rng.binomial(1, 0.6, 400) if dependent else rng.binomial(10, 0.6, 400)
    estimate = ratio_of_sums(accepted, np.full(400, 10))
    half = 1.96 * np.sqrt(0.6 * 0.4 / (400 if dependent else 4000))
    assert estimate.value == pytest.approx(0.6, abs=1.5 * half)
    assert estimate.value - estimate.low == pytest.approx(half, rel=0.12)
    assert estimate.high - estimate.value == pytest.approx(half, rel=0.12)


def test_units_without_a_denominator():
    assert ratio_of_sums(np.zeros(3), np.zeros(3)) is None
    assert ratio_of_sums(np.array([]), np.array([])) is None
    mostly_empty = ratio_of_sums(np.array([0, 0, 0, 0, 2, 3]), np.array([0, 0, 0, 0, 4, 4]))
    assert mostly_empty.value == pytest.approx(5 / 8)
    assert (mostly_empty.low, mostly_empty.high) == pytest.approx((0.5, 0.75))


def test_one_unit_has_no_interval():
    estimate = ratio_of_sums(np.array([3]), np.array([4]))
    assert columns("rate", estimate) == {"rate": 0.75, "rate_low": None, "rate_high": None}
    (alone,) = ratios_of_sums(np.array([3]), np.array([[4]]))
    assert columns("rate", alone) == columns("rate", estimate)


# --- Empirical against exact ---


def exact_probs(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).dirichlet(np.full(40, 0.3), size=3)


def draws_of(probs: np.ndarray, draws: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(10_000 + seed)
    return np.stack([rng.multinomial(draws, p) for p in probs])


def test_p_values_of_exact_draws_are_uniform():
    """300 fixed seeds; a p-value that is shifted by 0.12 anywhere fails."""
    p_values = [
        distance_check(draws_of(exact_probs(s), 200, s), exact_probs(s), s)["check_p_value"] for s in range(300)
    ]
    assert stats.kstest(p_values, "uniform").statistic < 0.12


def test_noise_is_that_of_exact_draws():
    """The mean and 99% quantile that are published, against the same distance of fresh exact draws."""
    probs = exact_probs(5)
    seen = [distance_check(draws_of(probs, 200, seed), probs, 0) for seed in range(300)]
    distances = np.array([check["check_tv"] for check in seen])
    assert seen[0]["check_tv_noise"] == pytest.approx(distances.mean(), rel=0.05)
    assert (distances > seen[0]["check_tv_noise_q99"]).mean() <= 0.04


def test_a_biased_sampler_is_caught():
    """A sampler that flattens its probabilities by 5%."""
    probs = exact_probs(7)
    check = distance_check(draws_of(0.95 * probs + 0.05 / 40, 5000, 7), probs)
    assert check["check_tv"] > check["check_tv_noise_q99"]
    assert check["check_p_value"] == pytest.approx(1 / 1001)


def test_tv_of_counts_that_were_counted_by_hand():
    check = distance_check(np.array([[6, 4, 0], [0, 5, 5]]), np.array([[0.5, 0.5, 0.0], [0.0, 0.5, 0.5]]))
    assert check["check_tv"] == pytest.approx((0.1 + 0.0) / 2)


def test_a_forbidden_token_shows_beside_a_rare_tail():
    """The rare tail has its expected number of draws, but all are of one token of probability 0."""
    probs = np.array([[0.9, 0.0, *[1e-4] * 1000]])
    counts = np.zeros((1, 1002), dtype=np.int64)
    counts[0, :2] = 900, 100
    cells, exact = pooled(counts[0], probs[0], 1 / 1000)
    assert sorted(zip(cells, exact.round(6), strict=True)) == [(0, 0.1), (100, 0), (900, 0.9)]
    assert distance_check(counts, probs)["check_tv"] == pytest.approx(0.1)


def test_prefixes_too_flat_for_so_few_draws_say_nothing():
    """All tokens in one cell would be a distance of 0 and a p-value of 1, whatever was drawn."""
    flat, counts = np.full((1, 1000), 1e-3), np.zeros((1, 1000), dtype=np.int64)
    counts[0, 3] = 64
    assert set(distance_check(counts, flat).values()) == {None}
    coin = np.zeros((1, 1000))
    coin[0, :2], heads = 0.5, np.zeros((1, 1000), dtype=np.int64)
    heads[0, 0] = 64
    both = distance_check(np.concatenate([counts, heads]), np.concatenate([flat, coin]))
    assert both["check_tv"] == pytest.approx(0.5), "the mean over what says something"


def test_one_forbidden_token_shows_under_greedy_decoding():
    probs, counts = np.array([[0.0, 1.0, 0.0]]), np.array([[1, 511, 0]])
    assert distance_check(counts, probs)["check_p_value"] == pytest.approx(1 / 1001)
    right = distance_check(np.array([[0, 512, 0]]), probs)
    assert (right["check_tv"], right["check_p_value"]) == (0, 1)
