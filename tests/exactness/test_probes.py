"""What may hide between the probes: bounds cover it, surprises are followed up, and seeds are told from strips."""

import collections
import dataclasses
import itertools
import time

import numpy as np
import pytest
import torch

from specbench.core.machine.journal import Journal
from specbench.core.rng import Stream
from specbench.exactness import suite
from specbench.exactness.draws.alpha_spending import Looks
from specbench.exactness.draws.probes import Probe
from specbench.exactness.enumeration.boxes import Model
from specbench.exactness.enumeration.laws import all_drafts, joint_tv, law_ends, law_of
from specbench.exactness.enumeration.locate import locate
from specbench.exactness.evidence import Evidence
from specbench.exactness.results import COUNTED, JOINT, LOCATED, RULE, Habit, Row
from specbench.exactness.settings import LEAST_EFFORT, RequestBudget, Settings
from specbench.exactness.statistics.calls import MODELS
from specbench.exactness.steps import verified_steps
from specbench.exactness.streams import request_streams
from specbench.exactness.verdict import ROUNDING, verdict_of
from specbench.exactness.zoo.steps import TokenSteps
from specbench.rules.token.formulas import RULE as TOKEN
from specbench.sampling import inverse_cdf
from tests.helpers.cases import CPU, FIXTURES, examined
from tests.helpers.made_up_verifiers import EmitsAt, changed

CHAIN = FIXTURES["chain"]
LOW = 0.41237
ALPHA = 0.2  # of a bound; the first model's share is half of it

pytestmark = pytest.mark.usefixtures("unchecked")


class Strip(TokenSteps):
    """Right, but for a strip of the emit uniform in which it emits token 0."""

    def __init__(self, width: float):
        self.width = width

    def emit(self, weights, draft, streams, num_accepted):
        u = streams.uniform(Stream.EMIT)[:, 0]
        return torch.where((u > LOW) & (u < LOW + self.width), 0, inverse_cdf(weights, u))


class OfRequests(TokenSteps):
    """Right, but for requests of some seeds or positions, which emit token 0."""

    def __init__(self, name: str, values: torch.Tensor):
        self.name, self.values = name, values

    def emit(self, weights, draft, streams, num_accepted):
        chosen = torch.isin(getattr(streams, self.name), self.values)
        return torch.where(chosen, 0, inverse_cdf(weights, streams.uniform(Stream.EMIT)[:, 0]))


def truth(width: float) -> tuple[float, float]:
    """Of Strip on the fixture, by the rule's formulas: how often it does otherwise, and its bias a step."""
    drafts = all_drafts(CHAIN, CHAIN.gamma)
    law = law_of(TOKEN, drafts)
    upper = law.emit.cumsum(dim=-1)
    lost = (upper.clamp(max=LOW + width) - (upper - law.emit).clamp(min=LOW)).clamp(min=0)
    emit = law.emit - lost
    emit[..., 0] += lost.sum(dim=-1)
    others = lost[..., 1:].sum(dim=-1)
    ends = law_ends(CHAIN, drafts, dataclasses.replace(law, emit=emit))
    return float((drafts.weight[:, None] * law.length * others).sum()), joint_tv(CHAIN, ends)


@pytest.fixture(scope="module")
def sound() -> Model:
    """Of the sound rule: what is known of code that does right wherever it was looked at."""
    return locate(TokenSteps(), CHAIN)


def probe_of(verifier, model: Model | None) -> Probe:
    """A probe whose model is given, or which is held against the rule's formulas if it is None."""
    probe = Probe(verifier, CHAIN, 0.0)
    if model is not None:
        probe.models, probe.method, probe.fuzzy = [model], LOCATED, False
    return probe


def put(probe: Probe, requests: int, seed: int) -> Probe:
    streams = request_streams(seed, 0, requests, CHAIN.gamma + 1, CPU)
    probe.check(verified_steps(probe.verifier, CHAIN, streams), [requests])
    return probe


# --- Bounds ---


@pytest.mark.cases(1)
@pytest.mark.parametrize("method", [LOCATED, RULE])
def test_upper_bounds_cover_a_strip_that_nobody_located(sound, method):
    """120 runs of 1,500 requests, of which about 2 meet the strip: what hides is above its bound in 10% at most.

    12 are to be expected then, and 34 have a chance below 1e-7. The bound says something too: it is 5e-3 at most.
    """
    differing, tv = truth(2e-3)
    assert 0.3 * differing < tv <= differing < 2e-3
    assert 1 < 1500 * differing < 3
    missed, beyond, largest = 0, 0, []
    for seed in range(120):
        probe = put(probe_of(Strip(2e-3), sound if method == LOCATED else None), 1500, seed)
        assert probe.method == method
        bound = probe.bound(ALPHA, 0.01)
        assert (bound.draws, bound.differing) == (1500, probe.surprises)
        missed += bound.hidden < differing
        beyond += bound.tv < tv
        largest.append(bound.tv)
    assert missed < 34
    assert beyond <= missed
    assert sum(largest) / len(largest) < 5e-3


def test_lower_bounds_leave_room_for_what_makes_up_for_a_bias(sound):
    """A biased model of code that is sound: in at most 10% of 300 runs its bias less what may hide is above 0."""
    width = 0.02
    strip = locate(Strip(width), CHAIN)
    assert strip.tv == pytest.approx(truth(width)[1], rel=1e-6)
    above = 0
    for seed in range(300):
        bound = put(probe_of(TokenSteps(), strip), 300, seed).bound(0.01, ALPHA)
        assert bound.located == pytest.approx(strip.tv)
        above += bound.least > 0
    assert above < 55
    kept = put(probe_of(Strip(width), strip), 20_000, 0).bound(0.01, 1e-6)
    assert 0.9 * strip.tv < kept.least < strip.tv < kept.tv  # and code that is biased so is said to be


def test_nothing_is_bet_on_against_a_model_that_is_not_the_targets():
    """Code that is sound differs from a biased model in one direction, which is no evidence against the code."""
    strip = locate(Strip(0.02), CHAIN)
    probe = put(probe_of(TokenSteps(), strip), 5000, 0)
    assert probe.surprises > 20
    assert probe.paired_p_value is None


def test_bounds_from_below_have_one_false_alarm_at_all_looks_together(sound):
    """Code whose surprises make up for the bias of its model: some look says that it is biased in few of 2,000 runs.

    40 are to be expected at most, and 80 have a chance below 1e-7.
    """
    bias, rng, alarms = 0.05, np.random.default_rng(0), 0
    looks = Looks(Settings(false_alarm=0.2), Evidence(), Journal(), fixtures=1)
    probe = probe_of(TokenSteps(), dataclasses.replace(sound, tv=bias))
    for _ in range(2000):
        probe.draws = probe.surprises = 0
        for draws in (100, 400, 1600, 6400, 25_600, 102_400, 409_600):
            probe.surprises += int(rng.binomial(draws - probe.draws, bias))
            probe.draws = draws
            if probe.least(looks.least_alarm) > 0:
                alarms += 1
                break
    assert alarms < 80


def test_all_models_of_a_fixture_share_one_false_alarm(sound):
    """Without surprises the bound is 1 - share^(1/n), which gives each model's share of alpha away."""
    probe, shares = probe_of(TokenSteps(), sound), []
    assert probe.hidden(ALPHA) == 1.0  # nothing was drawn yet
    put(probe, 10, 0)
    for phase in range(1, MODELS + 1):
        probe.calls.phase = phase
        shares.append((1 - probe.hidden(ALPHA)) ** 10)
    assert shares == sorted(shares, reverse=True)
    assert min(shares) > 0
    assert 0.9 * ALPHA < sum(shares) < ALPHA


# --- What follows a surprise ---


@pytest.mark.cases(1)
@pytest.mark.parametrize("width", [1e-2, 1e-3, 1e-4])
def test_a_strip_that_requests_meet_is_located_to_its_width(sound, width):
    """Its model knows the bias of the drafts that met it at once, and all of it when nothing surprises it any more.

    At every time the bound covers the truth, and the count begins anew with another share of alpha.
    """
    differing, tv = truth(width)
    probe, phase, located, met = probe_of(Strip(width), sound), 1, 0.0, 0
    assert probe.located < 1e-9
    while True:
        put(probe, int(30 / differing), phase)
        surprises = probe.surprises
        assert probe.bound(1e-4, 1e-4).tv > tv
        if not probe.follow_up(seed=5):
            break
        phase, met = phase + 1, met + surprises
        assert (probe.draws, probe.surprises, probe.explained, probe.impure) == (0, 0, met, 0)
        assert (probe.calls.phase, probe.example) == (phase, None)
        assert located < probe.located < tv * (1 + 1e-6)
        located = probe.located
    assert met > 10
    assert surprises == 0
    assert 2 <= phase <= 4
    assert located == pytest.approx(tv, rel=1e-6)
    bound = probe.bound(ALPHA, 1e-4)
    assert bound.hidden == pytest.approx(1 - (ALPHA * 0.5**phase) ** (1 / probe.draws))
    assert bound.tv == pytest.approx(bound.located + bound.hidden)
    assert bound.explained == met


def test_models_come_to_an_end(sound):
    """Code whose strip grows each time it was found is not followed for ever; its surprises stay in the bound."""
    verifier = Strip(0.05)
    probe, models = probe_of(verifier, sound), 1
    for number in range(2 * MODELS):
        verifier.width = 0.05 + 0.03 * number
        put(probe, 500, number)
        models += probe.follow_up(seed=number)
    assert models == probe.calls.phase == MODELS
    assert probe.surprises > 0
    assert probe.hidden(0.01) > probe.surprises / probe.draws


@pytest.mark.parametrize("name", ["seeds", "positions"])
def test_requests_that_differ_by_seed_or_position_are_impure_and_stay_in_the_bound(sound, name):
    """With the same uniforms given, of another seed and position, each of them comes out as foreseen."""
    streams = request_streams(3, 0, 2000, CHAIN.gamma + 1, CPU)
    values, times = getattr(streams, name).unique(return_counts=True)
    chosen = values[times == 1][::20]
    probe = put(probe_of(OfRequests(name, chosen), sound), 2000, 3)
    met = probe.surprises
    assert 10 < met <= len(chosen)
    assert not probe.follow_up(seed=5)
    assert (probe.impure, probe.surprises, probe.draws, probe.calls.phase) == (met, met, 2000, 1)
    assert probe.located < 1e-9  # no model took it in
    bound = probe.bound(0.01, 1e-7)
    assert bound.impure == met
    assert bound.tv > met / 2000
    put(probe, 2000, 3)
    assert probe.surprises == 2 * met
    assert not probe.follow_up(seed=5)
    assert probe.impure == met  # once is enough


def test_surprises_are_bet_on(sound):
    """Token 0 in the place of others does not balance out; swapped uniforms do: 2,000 surprises each."""
    biased = put(probe_of(Strip(0.3), sound), 10_000, 0)
    assert biased.surprises > 1000
    assert biased.paired_p_value < 1e-9
    balanced = put(probe_of(EmitsAt(lambda u, _: 1 - u), sound), 10_000, 0)
    assert balanced.surprises > 1000
    assert balanced.structural > 1000  # tokens that are not the rule's, beyond rounding
    assert balanced.paired_p_value > 1e-4  # a false alarm of 1e-4, by Ville's inequality
    assert put(probe_of(TokenSteps(), sound), 1000, 0).paired_p_value is None


def test_what_is_held_against_nothing_has_no_bound_of_this_kind():
    probe = put(probe_of(changed(rule="mine"), None), 100, 0)
    assert (probe.method, probe.draws, probe.hidden(ALPHA), probe.located) == (COUNTED, 0, None, None)
    assert probe.bound(ALPHA, ALPHA, 0.3).tv == 0.3
    assert not probe.follow_up(seed=5)


def test_a_proof_falls_with_the_first_contradiction(sound):
    """A request that the model did not foresee, a test that rejects the fixture, any habit."""
    probe = put(probe_of(TokenSteps(), sound), 1000, 0)
    clean = probe.bound(ALPHA, ALPHA)
    assert clean.proved
    rejected, passed = (Row(name, JOINT, 1000, 99.0, 26, 1e-9, 1000) for name in ("chain", "deep"))
    same, differs = Habit("called again", 100, 0), Habit("called again", 100, 1)
    assert Evidence(bounds=[clean], rows=[passed], habits=[same]).uncontradicted == [clean]
    for rows, habits in (([rejected], [same]), ([], [differs])):
        assert not Evidence(bounds=[clean], rows=rows, habits=habits).uncontradicted[0].proved
    assert not Evidence(bounds=[dataclasses.replace(clean, differing=1)]).uncontradicted[0].proved
    looks = Looks(Settings(), Evidence(habits=[differs]), Journal(), fixtures=1)
    looks.conclude({"chain": probe}, 0)
    assert [bound.proved for bound in looks.evidence.bounds] == [False]
    seeds = request_streams(0, 0, 1000, CHAIN.gamma + 1, CPU).seeds
    probe.verifier = OfRequests("seeds", seeds[-2:-1])  # a seed of one request in a thousand
    assert not put(probe, 1000, 0).bound(ALPHA, ALPHA).proved


# --- In the suite ---


@pytest.mark.thorough
@pytest.mark.usefixtures("few_enumerated")
def test_the_suite_follows_up_and_the_strip_is_in_the_bound(monkeypatch):
    """As for slow code, few lines are looked at, which miss a strip of 3e-4; about 30 of 200,000 requests meet it."""
    monkeypatch.setattr(RequestBudget, "effort", LEAST_EFFORT)
    settings = Settings(draws=200_000, seconds=0, serial_draws=0, calls=0, use_calls=0, stop_when_caught=False)
    evidence = examined(Strip(3e-4), settings)
    (bound,) = [row for row in evidence.bounds if row.fixture == "chain"]
    assert bound.explained > 5
    assert bound.differing == 0
    assert bound.draws == 200_000  # after the last look it has all its draws anew
    assert bound.located == pytest.approx(truth(3e-4)[1], rel=1e-6)
    assert bound.located < bound.tv < 2 * bound.located
    assert bound.least > ROUNDING
    assert not any(row.fixture == "chain" for row in evidence.rejected)  # no test of counts sees it
    assert verdict_of(evidence).kind == "not lossless"


@pytest.mark.thorough
@pytest.mark.usefixtures("few_enumerated")
def test_a_model_made_at_the_last_moment_still_gets_draws(monkeypatch):
    """Time that is up while a strip is located would leave a model without draws, and so without a bound."""
    monkeypatch.setattr(RequestBudget, "effort", LEAST_EFFORT)
    real, clock = suite.Probe.follow_up, itertools.count(step=0.05)
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))

    def slow(probe, seed):
        made = real(probe, seed)
        if made:
            collections.deque(itertools.islice(clock, 30), maxlen=0)
        return made

    monkeypatch.setattr(suite.Probe, "follow_up", slow)
    settings = Settings(draws=10_000_000, seconds=1.5, serial_draws=0, calls=0, use_calls=0, stop_when_caught=False)
    evidence = examined(Strip(3e-3), settings)
    (bound,) = [row for row in evidence.bounds if row.fixture == "chain"]
    assert bound.explained > 0
    assert bound.draws > 0
    assert bound.tv < 0.9
