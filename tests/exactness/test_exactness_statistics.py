"""The statistics of the laboratory: would they see a bias, do they raise false alarms; and evidence over whole texts.

All statistical asserts have fixed seeds and bounds that chance breaks with a probability far below 1e-6.
"""

import dataclasses
import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy import stats

from specbench.core.rng import MAX_POSITION, Stream, Streams
from specbench.core.types import PADDING
from specbench.exactness.draws import serial
from specbench.exactness.draws.probes import Probe
from specbench.exactness.draws.serial import serial_rows, transforms
from specbench.exactness.draws.small_pairs import SmallTier
from specbench.exactness.enumeration.laws import rule_lengths
from specbench.exactness.evidence import Evidence
from specbench.exactness.fixtures import small_fixtures
from specbench.exactness.results import ACCEPTANCE, FORM, JOINT, LAST_FIRST, NEIGHBOURS, SUCCESSIVE, TWINS
from specbench.exactness.statistics.g_tests import holm, node_g_test, pair_g_test
from specbench.exactness.statistics.power import detectable_tv, tv_upper_bound
from specbench.exactness.statistics.tally import Tally
from specbench.exactness.steps import verified_steps
from specbench.exactness.streams import END_POSITIONS, END_SEEDS, HABITS, request_streams
from specbench.exactness.zoo import residual
from specbench.exactness.zoo.rng import ReseededSteps
from specbench.exactness.zoo.steps import TokenSteps
from specbench.rules.token.formulas import RULE as TOKEN
from specbench.rules.token.masked import MaskedVerifier
from specbench.sampling import inverse_cdf
from tests.helpers.cases import CPU, FIXTURES
from tests.helpers.made_up_verifiers import EmitsAt, refusing

# --- Tests, power, bounds ---


def test_g_test_fails_hard_on_a_forbidden_token():
    probs = np.array([[0.5, 0.5, 0.0]])
    assert node_g_test(np.array([[500, 500, 0]]), probs).p_value == 1.0
    assert node_g_test(np.array([[500, 499, 1]]), probs).p_value == 0.0


def test_g_test_agrees_with_scipy_and_pools_rare_cells():
    counts, probs = np.array([[480, 330, 190]]), np.array([[0.5, 0.3, 0.2]])
    ours = node_g_test(counts, probs)
    theirs = stats.power_divergence(counts[0], probs[0] * 1000, lambda_="log-likelihood")
    correction = 1 + (1 / 0.5 + 1 / 0.3 + 1 / 0.2 - 1) / (6 * 1000 * 2)  # Williams'
    assert ours.statistic * correction == pytest.approx(theirs.statistic)
    assert ours.p_value == pytest.approx(float(stats.chi2.sf(ours.statistic, 2)))
    pooled = node_g_test(np.array([[500, 497, 2, 1]]), np.array([[0.5, 0.4975, 0.0015, 0.001]]))
    assert pooled.dof == 1
    assert pooled.untested == 3


@pytest.mark.usefixtures("unchecked")
def test_g_tests_of_few_pairs_do_not_reject_too_often():
    """100 pairs in 16 cells: without Williams' correction 7% of p-values are below 0.05, 1.5% below 0.01."""
    rng = np.random.default_rng(0)
    p_values = np.array([pair_g_test(*rng.random((2, 100))).p_value for _ in range(3_000)])
    assert (p_values < 0.05).mean() < 0.06
    assert (p_values < 0.01).mean() < 0.0135


def test_what_is_too_rare_to_be_tested_is_in_the_bound():
    """Every step emits a token of probability 0.01 in the end: of 320 draws no cell says so, but the bound does."""
    counts, probs = np.array([[0, 320], [0, 0]]), np.array([[0.99, 0.01], [0.5, 0.5]])
    test = node_g_test(counts, probs)
    assert test.untested == 320
    assert tv_upper_bound(0.0, 1, 320, 0.99, test.untested) == 1.0
    few = tv_upper_bound(1.0, 1, 320, 0.99, 96.0)
    assert few > 0.3 + tv_upper_bound(1.0, 1, 320, 0.995) / 2


def test_the_detectable_bias_is_detected():
    """The worst case for two cells: as much bias as 10,000 draws should show with power 0.9, 1,000 experiments."""
    tv = detectable_tv(10_000, 1, 0.9, 0.01)
    rng = np.random.default_rng(0)
    counts = rng.binomial(10_000, 0.5 + tv, 1000)
    p_values = [node_g_test(np.array([[k, 10_000 - k]]), np.array([[0.5, 0.5]])).p_value for k in counts]
    assert 0.85 <= np.mean(np.array(p_values) < 0.01) <= 0.95
    assert detectable_tv(10_000, 1, 0.001, 0.01) == 0  # without any bias it rejects more often
    # What a table of the noncentral chi-square gives for TV 1e-3, power 0.99, false alarm 1e-6.
    assert detectable_tv(20_200_000, 15, 0.99, 1e-6) == pytest.approx(1e-3, rel=0.01)


@pytest.mark.parametrize("tv", [0.0, 0.01, 0.03])
def test_upper_bounds_cover(tv):
    """99% bounds, 200 experiments: fewer than 7% may fail (binomial tail below 1e-7)."""
    rng = np.random.default_rng(1)
    true = np.full(8, 1 / 8) + tv / 4 * np.repeat([1, -1], 4)
    bounds = []
    for counts in rng.multinomial(20_000, true, 200):
        test = node_g_test(counts[None], np.full((1, 8), 1 / 8))
        bounds.append(tv_upper_bound(test.statistic, test.dof, 20_000))
    assert np.mean(np.array(bounds) < tv) < 0.07
    assert np.median(bounds) < tv + 0.02  # and they are of use


def test_holm_is_stepwise():
    p = {"a": 1e-9, "b": 2e-8, "c": 4e-7, "d": 0.3}
    assert holm(p, 1e-6) == ["a", "b", "c"]
    assert holm({"a": 0.6, "b": 3e-7, "c": 2e-7}, 1e-6) == ["c", "b"]
    assert holm({"b": 6e-7, "c": 4e-7}, 1e-6) == ["c", "b"]
    assert holm({"b": 6e-7, "c": 6e-7}, 1e-6) == []


def test_pairs_may_be_chosen_by_what_came_first():
    """The first value selected: no alarm. The second depending on it: alarm."""
    rng = np.random.default_rng(2)
    first, second = rng.random(50_000), rng.random(50_000)
    kept = first < 0.4
    assert pair_g_test(first[kept], second[kept]).p_value > 1e-7
    assert pair_g_test(first, np.where(rng.random(50_000) < 0.1, first, second)).p_value < 1e-20


def test_pit_is_uniform_and_sees_a_wrong_residual():
    fixture = FIXTURES["chain"]
    p_values = []
    for verifier in (MaskedVerifier(), residual.TargetResidual()):
        generator = torch.Generator().manual_seed(0)
        steps = verified_steps(verifier, fixture, request_streams(0, 0, 1500, 3, CPU))
        values = transforms(steps, generator).flatten().numpy()
        p_values.append(stats.kstest(values[~np.isnan(values)], "uniform").pvalue)
    assert p_values[0] > 1e-7
    assert p_values[1] < 1e-12


@pytest.mark.usefixtures("unchecked")
def test_p_values_of_a_sound_verifier_are_uniform():
    """3 seeds on every fixture, joint and acceptance: Kolmogorov's test at 1e-7."""
    rows = []
    for seed in range(1_000_000, 1_000_003):
        probes = {fixture.name: Probe(MaskedVerifier(), fixture, 0.0) for fixture in small_fixtures()}
        SmallTier(MaskedVerifier(), probes, seed, CPU, Evidence()).draw(dict.fromkeys(probes, 5000))
        rows += [row for probe in probes.values() for row in probe.rows()]
    for test in (JOINT, ACCEPTANCE):
        values = [row.p_value for row in rows if row.test == test]
        idle = 2 * (test == ACCEPTANCE)  # no drafts, and hardly a rejection in 5,000 steps
        assert len(values) == 3 * (len(small_fixtures()) - idle)
        assert stats.kstest(values, "uniform").pvalue > 1e-7


@pytest.mark.parametrize(
    ("odd", "steps", "rejected"), [(2, 3_000_000, False), (1, 20_000, False), (200, 3_000_000, True)]
)
def test_acceptance_may_differ_by_rounding(odd, steps, rejected, monkeypatch):
    """On rows p = q nothing is ever refused: 2 refusals in 3 million steps are rounding, 200 are another rule.

    One in the first 20,000 is as well: of the fused kernels some seed in 50 has it there.
    """
    tally = Tally(FIXTURES["ties"], TOKEN)
    lengths = steps * rule_lengths("token", FIXTURES["ties"]).numpy()
    lengths[2, 0] = odd
    monkeypatch.setattr(tally, "lengths", lambda: lengths)
    test = tally.acceptance()
    assert (test.p_value < 1e-9) is rejected


# --- Streams ---


def test_no_two_requests_share_a_stream():
    """Of 200,000 requests of one run, none; nor of two runs, nor of two parts of one."""
    first, other, later = (
        request_streams(seed, begin, 200_000, 3, CPU) for seed, begin in ((0, 0), (1, 0), (0, HABITS))
    )
    pairs = [
        {*zip(streams.seeds.tolist(), streams.positions.tolist(), strict=True)} for streams in (first, other, later)
    ]
    assert [len(pair_set) for pair_set in pairs] == [200_000] * 3
    assert len(set.union(*pairs)) == 600_000


def test_seeds_and_positions_reach_the_ends_of_their_ranges():
    streams = request_streams(0, 0, 10_000, 3, CPU)
    assert set(END_SEEDS) <= set(streams.seeds.tolist())
    assert set(END_POSITIONS) <= set(streams.positions.tolist())
    assert streams.positions.min() >= 0
    assert streams.positions.max() == MAX_POSITION
    for bits in range(1, 32):  # all magnitudes
        assert ((streams.positions >= 2 ** (bits - 1)) & (streams.positions < 2**bits)).sum() > 30
    assert (streams.seeds >= 2**62).double().mean() > 0.4


def test_batches_do_not_change_what_is_drawn():
    whole = request_streams(0, 0, 100, 3, CPU)
    part = request_streams(0, 40, 60, 3, CPU)
    assert torch.equal(whole.seeds[40:], part.seeds)
    assert torch.equal(whole.positions[40:], part.positions)


# --- Successive steps, neighbours, twins ---


class ReadsAhead(TokenSteps):
    """Draws with the uniform that tests the first drafted token of the next step."""

    def emit(self, weights, draft, streams, num_accepted):
        positions = streams.positions + num_accepted + 1
        following = Streams(streams.seeds, positions, streams.width)
        return inverse_cdf(weights, following.uniform(Stream.ACCEPT)[:, 0])


class FewerBits(TokenSteps):
    """Seeds or positions are kept in fewer bits."""

    def __init__(self, name: str, bits: int):
        self.name, self.bits = name, bits

    def read(self, draft, target, streams):
        kept = {self.name: getattr(streams, self.name) & (2**self.bits - 1)}
        return draft, target, dataclasses.replace(streams, **kept)


@pytest.mark.cases(1)
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("verifier", "tests"),
    [
        (MaskedVerifier(), set()),
        (ReseededSteps(), {SUCCESSIVE}),
        (ReadsAhead(), {LAST_FIRST}),
        (EmitsAt(lambda u, _: u[torch.arange(len(u)) & ~4]), {NEIGHBOURS}),  # of the request 4 places before
        (FewerBits("positions", 16), {TWINS}),
        (FewerBits("seeds", 32), {TWINS}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_couples_two_steps_is_seen_by_its_own_test(verifier, tests):
    rows, *_ = serial_rows(verifier, 80_000, 0, CPU, 0)
    seen = {row.test for row in rows if row.p_value < 1e-9}
    assert tests <= seen
    assert all(row.p_value > 1e-5 for row in rows) == (not tests)


@pytest.mark.usefixtures("unchecked")
def test_a_verifier_that_refuses_one_of_the_fixtures_is_tested_on_the_other():
    verifier = refusing(ReseededSteps, lambda draft: (draft.num_draft_tokens == 0).any(), "draft: empty")
    rows, refused, _ = serial_rows(verifier, 40_000, 0, CPU, 0)
    assert refused == {"serial idle": "draft: empty"}
    assert SUCCESSIVE in {row.test for row in rows if row.p_value < 1e-9}


@pytest.mark.parametrize("late", [False, True])
def test_time_that_is_up_when_all_twins_are_made_cuts_nothing(late, monkeypatch):
    clock = itertools.count()
    monkeypatch.setattr(serial, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    twins = serial._Serial(MaskedVerifier(), FIXTURES["chain"], 0, CPU)
    rows = twins.twins(serial._LEAST, 0, float(len(serial._FLIPS) - (3 if late else 2)))
    assert (twins.late, [row.test for row in rows]) == ((True, []) if late else (False, [TWINS]))


def test_one_pair_of_steps_is_enough_for_a_test():
    rows, refused, late = serial_rows(MaskedVerifier(), 1, 0, CPU, 0)
    assert (refused, late) == ({}, False)
    assert {row.test for row in rows} == {FORM, SUCCESSIVE, LAST_FIRST}
    assert all(row.p_value == 1 for row in rows)


def test_malformed_steps_are_counted_among_all_steps():
    class Silent(MaskedVerifier):
        def verify(self, draft, target, streams):
            result = super().verify(draft, target, streams)
            return dataclasses.replace(result, token_ids=torch.full_like(result.token_ids, PADDING))

    forms = [row for row in serial_rows(Silent(), 8000, 0, CPU, 0)[0] if row.test == FORM]
    assert all(row.statistic == row.draws > 4000 for row in forms)
