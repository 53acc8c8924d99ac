"""The speedup of paired rounds and its interval, on made-up times whose truth is known."""

import numpy as np
import pytest

from specbench.metrics.intervals import columns
from specbench.metrics.speed import Rounds, Speed, speed_of
from specbench.protocols.rounds import TOLERANCE

PROMPTS = 0.17  # standard deviation of log(plain / speculative time) over prompts, as of the embedded pair
TRUTH = 1.1 / np.exp(PROMPTS**2 / 2)  # of all prompts: E[plain seconds] / E[speculative seconds]


def made_up(
    rng: np.random.Generator,
    rounds: int,
    batches: int = 12,
    noise: float = 0.02,
    outliers: float = 0,
    common: float = 0,
) -> Rounds:
    """Batches that are 1.1 times as fast by and large.

    Args:
        noise: standard deviation of the logarithm of one pair's ratio.
        outliers: share of decodings that something stretches twofold, on average.
        common: standard deviation of what all pairs of a round have in common.
    """

    def times(seconds: np.ndarray, sign: int) -> np.ndarray:
        logs = rng.normal(0, noise / np.sqrt(2), (rounds, batches)) + sign * shared / 2
        return seconds * np.exp(logs + (rng.random(logs.shape) < outliers) * rng.exponential(0.7, logs.shape))

    shared = rng.normal(0, common, (rounds, 1))
    plain = 0.3 * np.exp(rng.normal(0, 0.2, batches))
    tokens = np.full((rounds, batches), 32.0)
    speculative = plain / 1.1 * np.exp(rng.normal(0, PROMPTS, batches))
    return Rounds(tokens.copy(), times(speculative, -1), tokens, times(plain, 1))


def first(rounds: Rounds, count: int) -> Rounds:
    return Rounds(*(values[:count] for values in vars(rounds).values()))


def timed_until_steady(rounds: Rounds) -> Speed:
    """The rule of protocols/rounds.py: further rounds while they scatter."""
    for count in range(2, len(rounds.seconds) + 1):
        speed = speed_of(first(rounds, count))
        if speed.round_error is not None and speed.round_error <= TOLERANCE:
            break
    return speed


def test_one_round_is_a_ratio_of_pooled_speeds():
    """No mean of the batches' own ratios, which are 1 / 0.4 and 0.2 times those of plain decoding."""
    one = Rounds(*(np.array([values]) for values in ([10, 20], [1.0, 4.0], [5, 25], [2.0, 4.0])))
    speed = speed_of(one)
    assert speed.speedup.value == pytest.approx((30 / 5) / (30 / 6))
    assert speed.speedup.low < speed.speedup.value < speed.speedup.high
    assert speed.seconds.tolist() == pytest.approx([1, 4])
    assert speed.plain_seconds.tolist() == pytest.approx([2, 4])
    assert speed.round_error is speed.plain_round_error is None


def test_batches_of_one_speedup_leave_no_doubt():
    """Batches of very different length, each exactly twice as fast."""
    tokens = np.array([[1.0, 10.0, 100.0, 1000.0]])
    speedup = speed_of(Rounds(tokens, tokens / 10, tokens, tokens / 5)).speedup
    assert (speedup.value, speedup.low, speedup.high) == pytest.approx((2, 2, 2))


def test_one_batch_has_no_interval():
    speed = speed_of(made_up(np.random.default_rng(0), rounds=3, batches=1))
    assert np.isnan([speed.speedup.low, speed.speedup.high]).all()
    assert columns("speedup", speed.speedup) == {
        "speedup": speed.speedup.value, "speedup_low": None, "speedup_high": None
    }  # fmt: skip
    assert speed.round_error is not None


def slow_round(times: Rounds) -> None:
    """Everything in the second round takes three times as long: another program had the machine."""
    times.seconds[1] *= 3
    times.plain_seconds[1] *= 3


def slow_way(times: Rounds) -> None:
    """A disturbance that hit plain decoding alone, a whole round long: the 1.44 that a demo once named the winner."""
    times.plain_seconds[1] *= 1.4


def slow_batches(times: Rounds) -> None:
    """Single decodings, ten times as long, never twice in a batch."""
    for batch in range(0, 12, 2):
        times.seconds[batch % 3, batch] *= 10


def slower_and_slower(times: Rounds) -> None:
    """A machine that heats up, by a half from round to round."""
    for number in range(3):
        times.seconds[number] *= 1.5**number
        times.plain_seconds[number] *= 1.5**number


@pytest.mark.parametrize("disturb", [slow_round, slow_way, slow_batches, slower_and_slower])
def test_a_disturbance_does_not_move_the_estimate(disturb):
    """By less than 1.5%; without pairs or medians it moves by 4% to 90%. Nor tokens a second, if medians can tell."""
    quiet = made_up(np.random.default_rng(3), rounds=3, noise=0.01)
    disturbed = Rounds(*(values.copy() for values in vars(quiet).values()))
    disturb(disturbed)
    before, after = speed_of(quiet), speed_of(disturbed)
    assert after.speedup.value == pytest.approx(before.speedup.value, rel=0.015)
    assert after.speedup.low <= before.speedup.value <= after.speedup.high
    if disturb in (slow_round, slow_batches):
        assert after.seconds.sum() == pytest.approx(before.seconds.sum(), rel=0.02)
        assert after.plain_seconds.sum() == pytest.approx(before.plain_seconds.sum(), rel=0.02)


def test_texts_of_other_lengths_are_compared_by_tokens():
    """A verifier with randomness of its own may write twice the text in the next round."""
    rounds = made_up(np.random.default_rng(1), rounds=2, noise=0)
    rounds.tokens[1] *= 2
    rounds.seconds[1] *= 2
    assert speed_of(rounds).speedup.value == pytest.approx(speed_of(first(rounds, 1)).speedup.value)


@pytest.mark.parametrize(
    ("timed", "rounds", "disturbance"),
    [
        (speed_of, 1, {}),
        (speed_of, 2, {}),
        (speed_of, 2, {"noise": 0.2}),
        (speed_of, 3, {"noise": 0.2, "outliers": 0.1}),
        (speed_of, 3, {"outliers": 0.1}),
        (speed_of, 3, {"noise": 0.05, "common": 0.05}),
        (speed_of, 5, {"common": 0.1}),
        # Stopping where rounds happen to agree must not make it too narrow.
        (timed_until_steady, 6, {}),
        (timed_until_steady, 6, {"noise": 0.2}),
        (timed_until_steady, 6, {"outliers": 0.1}),
        (timed_until_steady, 6, {"noise": 0.05, "common": 0.05}),
    ],
)
def test_what_the_interval_holds(timed, rounds, disturbance):
    """300 runs; the share inside has a standard deviation of 0.0126 at 0.95, and 0.912 is three of them below."""
    rng = np.random.default_rng(rounds)
    speedups = [timed(made_up(rng, rounds, **disturbance)).speedup for _ in range(300)]
    assert np.mean([speedup.low <= TRUTH <= speedup.high for speedup in speedups]) >= 0.912


def test_what_the_interval_holds_where_few_batches_have_most_of_the_tokens():
    """Lengths whose logarithms scatter by 1.5: 90% of 2000 runs, and less than 85.8% with a chance below 1e-6."""
    rng, held = np.random.default_rng(0), 0
    for _ in range(2000):
        length, gain = np.exp(rng.normal(0, 1.5, (1, 12))), np.exp(rng.normal(0, PROMPTS, (1, 12)))
        speedup = speed_of(Rounds(32 * length, length * gain, 32 * length, length)).speedup
        held += speedup.low <= 1 / np.exp(PROMPTS**2 / 2) <= speedup.high
    assert held / 2000 >= 0.858


def test_intervals_are_no_wider_than_they_have_to_be():
    """On a quiet machine the prompts' scatter is all there is: t(11) sd / sqrt(12) for each of 300 runs, within 15%."""
    rng = np.random.default_rng(5)
    widths = [speed_of(made_up(rng, 2, noise=0.005)).speedup for _ in range(300)]
    half = np.median([np.log(speedup.high / speedup.low) / 2 for speedup in widths])
    assert half == pytest.approx(2.201 * PROMPTS / np.sqrt(12), rel=0.15)


def test_the_error_of_rounds_is_that_of_repeating_them():
    """The same batches in 400 runs of 4 rounds: how far the speedup scatters, against the median of what each run says.

    Common errors of 5% and single ones of 5%: sqrt(0.05^2 / 4 + 0.05^2 / 48) = 0.026, a median's up to 1.25 of it.
    """
    errors, log_speedups = [], []
    for seed in range(400):
        rng = np.random.default_rng(10_000 + seed)
        quiet = made_up(np.random.default_rng(0), 4, noise=0)
        both = rng.normal(0, 0.05, (4, 1)) + rng.normal(0, 0.05, (4, 12))
        run = speed_of(Rounds(quiet.tokens, quiet.seconds * np.exp(both), quiet.plain_tokens, quiet.plain_seconds))
        errors.append(run.round_error)
        log_speedups.append(np.log(run.speedup.value))
    assert np.median(errors) == pytest.approx(np.std(log_speedups), rel=0.25)


def test_two_rounds_that_agree_by_chance_are_not_believed():
    """Each pair is 20% off, and yet both rounds have the same median."""
    quiet = made_up(np.random.default_rng(0), 2, noise=0)
    signs = np.where(np.arange(12) % 2, 1, -1)
    off = np.exp(0.1 * np.array([signs, -signs]))
    speed = speed_of(Rounds(quiet.tokens, quiet.seconds * off, quiet.plain_tokens, quiet.plain_seconds))
    assert speed.round_error == pytest.approx(0.1 * np.sqrt(2) / np.sqrt(24))
    assert speed.round_error > TOLERANCE
