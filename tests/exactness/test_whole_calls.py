"""Verifiers that go wrong in few calls as a whole, on small fixtures: refuted, or with a bound above their bias."""

import collections
import random
from collections import Counter

import numpy as np
import pytest
import torch

from specbench.core.rng import Stream
from specbench.exactness.certificate import NOT_LOSSLESS
from specbench.exactness.draws.probes import Probe
from specbench.exactness.draws.small_pairs import SmallTier
from specbench.exactness.evidence import Evidence
from specbench.exactness.settings import settings_of
from specbench.exactness.statistics.calls import OF_COMPARED, OF_COUNTED, CallCounts, call_bound, call_sizes
from specbench.exactness.statistics.power import mean_at_most, share_at_most
from specbench.exactness.steps import verified_steps
from specbench.exactness.streams import request_streams
from specbench.exactness.verdict import verdict_of
from specbench.exactness.zoo.steps import TokenSteps
from specbench.sampling import inverse_cdf
from tests.helpers.cases import CPU, FIXTURES, examined

pytestmark = pytest.mark.usefixtures("unchecked")


class SpoilsCalls(TokenSteps):
    """Token verification that draws badly in one call in ``period``, chosen at random, of few tokens."""

    lossless = True

    def __init__(self, period: int):
        self.period, self.random = period, random.Random(7)

    def emit(self, weights, draft, streams, num_accepted):
        u = streams.uniform(Stream.EMIT)[:, 0]
        spoiled = weights.shape[1] <= 4 and self.random.random() < 1 / self.period
        return inverse_cdf(weights, torch.full_like(u, 1e-9) if spoiled else u)


@pytest.mark.cases(1, 2)
@pytest.mark.usefixtures("little_effort")
@pytest.mark.parametrize("period", [20, 200, 1009])
def test_a_verifier_that_spoils_whole_calls_is_refuted_or_bounded(period):
    """No event of a spoiled call has a bias of more than 1, so that its mean is at most 1 / period."""
    settings = settings_of("quick", draws=6_000, calls=0, use_calls=0, serial_draws=0)
    evidence = examined(SpoilsCalls(period), settings)
    verdict = verdict_of(evidence)
    assert verdict.kind == NOT_LOSSLESS or verdict.tv > 1 / period
    unspoiled = [bound.tv for bound in evidence.bounds if bound.differing == 0]
    assert max(unspoiled) < 2 / period or period == 20


@pytest.mark.parametrize("sizes", [OF_COMPARED, OF_COUNTED])
def test_calls_hold_all_requests_and_are_of_many_sizes(sizes):
    for requests in (1, 2, 31, 5000, 131_072):
        split = call_sizes(requests, 3, sizes)
        assert sum(split) == requests
        assert min(split) > 0
    assert len({size for size in split if size <= 512}) > 40
    assert (max(split) > 100_000) == (sizes == OF_COMPARED)


def test_requests_come_out_the_same_in_one_call_and_in_many():
    for name in ("ragged", "mixed", "one_hot", "idle", "long"):
        streams = request_streams(0, 0, 300, max(4, FIXTURES[name].gamma + 1), CPU)
        whole = verified_steps(TokenSteps(), FIXTURES[name], streams)
        parts = verified_steps(TokenSteps(), FIXTURES[name], streams, call_sizes(300, 5))
        assert torch.equal(whole.visible, parts.visible)
        assert torch.equal(whole.rows, parts.rows)


class RemembersRequests(TokenSteps):
    """Token verification that keeps the seeds and positions of each call by vocabulary and longest draft."""

    lossless = True

    def __init__(self):
        self.calls = collections.defaultdict(list)

    def read(self, draft, target, streams):
        requests = list(zip(streams.seeds.tolist(), streams.positions.tolist(), strict=True))
        self.calls[target.logits.shape[1], draft.max_draft_tokens].append(requests)
        return draft, target, streams


def test_fixtures_share_no_requests_and_no_sizes_of_calls():
    """Else a fault of some requests or sizes would strike all fixtures at once, whose calls call_bound counts apart."""
    verifier, fixtures = RemembersRequests(), [FIXTURES["chain"], FIXTURES["deep"]]
    probes = {fixture.name: Probe(verifier, fixture, 0.0) for fixture in fixtures}
    tier = SmallTier(verifier, probes, 0, CPU, Evidence())
    tier.draw(dict.fromkeys(probes, 3000))
    one, other = verifier.calls.values()
    assert {request for call in one for request in call}.isdisjoint(request for call in other for request in call)
    assert [len(call) for call in one] != [len(call) for call in other]


def test_shares_are_of_each_call():
    counts = CallCounts()
    differ = torch.zeros(100, dtype=torch.bool)
    differ[[10, 11, 99]] = True
    counts.add(differ, [10, 2, 87, 1])
    assert (counts.calls, dict(counts.shares)) == (4, {1.0: 2})
    counts.add(differ, [100])
    assert 0.03 <= min(counts.shares) < 0.033


def of_fixtures(share: float, failing: int, calls: int, seed: int) -> float:
    """The bound of calls that are those of eight fixtures."""
    fixtures = [CallCounts(len(range(i, calls, 8)), Counter({share: len(range(i, failing, 8))})) for i in range(8)]
    return call_bound(fixtures, 0.01, seed).code


@pytest.mark.parametrize(
    "bound", [lambda share, failing, calls, seed: mean_at_most({share: failing}, calls, 0.01, seed), of_fixtures],
    ids=["of D", "of small fixtures"],
)  # fmt: skip
@pytest.mark.parametrize(
    ("share", "chance", "calls"),
    [(1.0, 0.1, 400), (1.0, 0.02, 1600), (0.3, 0.1, 800), (0.5, 1.0, 100), (0.02, 0.5, 3000)],
)
def test_bounds_on_a_mean_over_calls_hold(bound, share, chance, calls):
    """A call fails by chance in a share of its requests: 20 of 2,000 bounds below the mean are expected at most.

    48 have a chance below 1e-6; bounds at 96% confidence have 53 to 82.
    """
    failing = np.random.default_rng(1).binomial(calls, chance, 2000).tolist()
    assert sum(bound(share, count, calls, seed) < share * chance for seed, count in enumerate(failing)) < 48


def test_bounds_on_a_mean_over_calls_are_no_wider_than_needed():
    """Large calls do not count as whole, and without rounding the bound is Clopper and Pearson's."""
    bounds = [mean_at_most({0.02: 500}, 10_000, 0.01, seed) for seed in range(100)]
    assert 0.001 < sum(bounds) / 100 < 0.0025
    assert len(set(bounds)) > 5  # a rounding that the numbers chose was wrong every time for some numbers
    assert share_at_most(500, 10_000, 0.01) > 0.05
    assert mean_at_most({1.0: 7}, 7, 0.01, 0) == 1
    assert mean_at_most({1.0: 3}, 20_000, 0.01, 0) == share_at_most(3, 20_000, 0.01)
    assert call_bound([CallCounts(calls=1000), CallCounts(calls=1000, phase=2)], 0.01, 0).code < 0.006
    assert call_bound([], 0.01, 0) is None
