"""The laboratory itself (would it see a bias, does it raise false alarms), and every verifier of conf/verifier in it.

False alarms: the suites of the lossless verifiers run at 1e-8 each and with fixed seeds; all other statistical asserts
here have fixed seeds and bounds that chance breaks with a probability far below 1e-6.
"""

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf
from scipy import stats

from specbench.errors import ConfigError
from specbench.exactness import eprocess, suite
from specbench.exactness.bias import bias_rows
from specbench.exactness.calibration import p_values
from specbench.exactness.certificate import LOSSLESS, NOT_LOSSLESS, NOT_REJECTED, certify, markdown
from specbench.exactness.differential import compare, explain
from specbench.exactness.elsewhere import elsewhere
from specbench.exactness.enumeration import (
    LAWS,
    all_drafts,
    completed,
    counted_ends,
    joint_tv,
    law_ends,
    rule_error,
    rule_lengths,
    target_joint,
    token_law,
)
from specbench.exactness.evidence import ACCEPTANCE, JOINT, Evidence, Settings
from specbench.exactness.exact import exact_tier
from specbench.exactness.fixtures import greedy_fixture, large_fixture, small_fixtures
from specbench.exactness.injection import GivenStreams, extreme_failures, injected_error
from specbench.exactness.pit import PitTable
from specbench.exactness.power import detectable_tv, draws_needed, ks_upper_bound, tv_upper_bound
from specbench.exactness.search import searched_tv
from specbench.exactness.small import SmallTier
from specbench.exactness.steps import verified_steps
from specbench.exactness.suite import examine, planned_draws
from specbench.exactness.tests import holm, ks_uniform, node_g_test, pair_g_test
from specbench.rng import Stream, Streams
from specbench.verifiers.block import BlockVerifier
from specbench.verifiers.flawed import accept, bonus, residual, wrong_q
from specbench.verifiers.flawed.base import BlockSteps, TokenSteps
from specbench.verifiers.masked import MaskedVerifier
from tests.cases import amount
from tests.test_verifiers import VERIFIERS as INSTALLED

CONF = Path(__file__).parent.parent / "conf"
YAMLS = sorted((CONF / "verifier" / "flawed").glob("*.yaml"))
FLAWED = {f"flawed/{path.stem}": instantiate(OmegaConf.load(path)) for path in YAMLS}
SOUND = {name: verifier for name, verifier in INSTALLED.items() if verifier.lossless}
FIXTURES = {fixture.name: fixture for fixture in (*small_fixtures(), greedy_fixture())}
CPU = torch.device("cpu")
every_fixture = pytest.mark.parametrize("fixture", FIXTURES.values(), ids=FIXTURES.keys())
# A verifier too slow for 40,000 steps on eight fixtures gets two seconds: it shows larger biases only.
SHORT = Settings(
    false_alarm=1e-8, draws=40_000, patience=10, seconds=2, serial_draws=10_000, vocabulary=3000, vocabulary_draws=500,
    vocabulary_seconds=1,
)  # fmt: skip
INTERPRETED = dataclasses.replace(SHORT, draws=2, serial_draws=0, vocabulary=0, patience=1, seconds=1)
HUNT = Settings(draws=100_000, serial_draws=20_000, vocabulary=0, stop_when_caught=True)


# --- Every verifier of conf/verifier ---


@pytest.mark.parametrize("name", SOUND)
def test_lossless_verifiers_pass_the_suite(name, monkeypatch):
    """40,000 steps show a bias of TV 0.027 a step with power 0.99; the enumeration beside it any bias at all.

    An interpreted verifier takes 50 ms and more a request: of the statistics it passes what needs no counts (form,
    forbidden tokens), and it must emit its reference's tokens in 8 requests of each fixture.
    """
    verifier = SOUND[name]
    monkeypatch.setattr(suite, "GREEDY_DRAWS", amount(verifier, suite.GREEDY_DRAWS, INTERPRETED.draws))
    evidence = examine(verifier, amount(verifier, SHORT, INTERPRETED), seed=1, device=CPU)
    assert not evidence.rejected
    assert all(row.rejected_at is None for row in evidence.rows)
    exact = exact_tier(verifier, amount(verifier, 200, interpreted=8), seed=1, device=CPU)
    assert all(row.error is None or row.error <= 1e-12 for row in exact)
    assert not any(row.structural for row in exact)
    if verifier.rule in LAWS:
        assert all(row.rule_error is not None and row.rule_error <= 1e-12 for row in exact)


@pytest.mark.parametrize("name", FLAWED)
def test_flawed_verifiers_are_caught(name):
    """By the statistical tests within 100,000 steps; failing those by the enumeration of their code."""
    verifier = FLAWED[name]
    assert not verifier.lossless
    assert type(verifier).__doc__
    evidence = examine(verifier, HUNT, seed=2, device=CPU)
    if not any(row.rejected_at is not None for row in evidence.rows):
        assert searched_tv(verifier, FIXTURES["near"]) > 5e-4


def test_the_zoo_holds_every_flawed_yaml_and_controls():
    swept = OmegaConf.load(CONF / "exp" / "flawed_zoo.yaml").hydra.sweeper.params.verifier.split(",")
    assert {name for name in swept if name.startswith("flawed/")} == set(FLAWED)
    assert len(FLAWED) >= 24
    assert {"masked", "control/sample_match", "control/coupled"} <= set(swept)


def test_the_skeletons_of_the_zoo_are_sound_rules():
    """So that each flawed verifier differs from a sound one in its bug alone."""
    for skeleton, sound in ((TokenSteps(), MaskedVerifier()), (BlockSteps(), BlockVerifier())):
        for fixture in FIXTURES.values():
            streams = Streams(torch.arange(3000), torch.full((3000,), 5), fixture.gamma + 1)
            one, two = (verified_steps(each, fixture, streams) for each in (skeleton, sound))
            assert torch.equal(one.verification.token_ids, two.verification.token_ids)
            assert torch.equal(one.verification.num_accepted, two.verification.num_accepted)


# --- Fixtures and enumeration ---


@every_fixture
def test_no_two_rows_of_a_fixture_are_equal(fixture):
    if fixture.name == "greedy":
        return  # one-hot rows
    for rows in (fixture.p, fixture.q):
        if not (fixture.deterministic and rows is fixture.q):
            distances = torch.cdist(rows, rows) + 9 * torch.eye(len(rows))
            assert distances.min() > 1e-4


def test_fixtures_hold_what_they_promise():
    p, q = FIXTURES["zeros"].p, FIXTURES["zeros"].q
    first = p[: len(q)]
    assert ((first == 0) & (q > 0)).any()
    assert ((first > 0) & (q == 0)).any()
    assert torch.equal(FIXTURES["ties"].p[0], FIXTURES["ties"].q[0])
    assert (FIXTURES["processed"].p == 0).any()
    assert rule_lengths("token", FIXTURES["greedy"])[-1].tolist() == [0, 1, 0]  # accepts, then refuses
    assert FIXTURES["ragged"].counts == (2, 0, 1)


@every_fixture
@pytest.mark.parametrize("rule", LAWS)
def test_rules_are_lossless_by_enumeration(fixture, rule):
    assert rule_error(rule, fixture) <= 1e-12


@every_fixture
def test_joints_are_distributions(fixture):
    joint = target_joint(fixture, fixture.gamma + 1)
    assert joint.sum() == pytest.approx(1, abs=1e-12)
    drafts = all_drafts(fixture, fixture.gamma)
    assert drafts.weight.sum() == pytest.approx(1, abs=1e-12)
    for law in LAWS.values():
        assert law(drafts).length.sum(1).numpy() == pytest.approx(1, abs=1e-12)


def test_enumeration_sees_a_wrong_residual():
    """Replacing the residual by the target: TV by hand for a one-token draft is the sum over x of the missing mass."""
    fixture = FIXTURES["processed"]
    drafts = all_drafts(fixture, 1)
    law = token_law(drafts)
    wrong = dataclasses.replace(law, emit=drafts.p.clone())
    p, q = fixture.p[0], fixture.q[0]
    refused = (q - torch.minimum(p, q)).sum()
    by_hand = 0.5 * (torch.minimum(p, q) + refused * p - p).abs().sum()
    assert joint_tv(fixture, law_ends(fixture, drafts, wrong)) == pytest.approx(float(by_hand), abs=1e-12)
    assert searched_tv(residual.TargetResidual(), fixture) == pytest.approx(float(by_hand), abs=1e-9)


def test_block_verification_accepts_more_than_token_verification():
    for fixture in FIXTURES.values():
        means = [float((rule_lengths(rule, fixture)[-1] * torch.arange(fixture.gamma + 1)).sum()) for rule in LAWS]
        assert means[1] >= means[0] - 1e-12


def test_counts_give_the_joint_back():
    """Tallied steps of a sound verifier, completed with the target: the joint to sampling noise."""
    fixture = FIXTURES["chain"]
    tier = SmallTier(MaskedVerifier(), [fixture], 3, CPU, Evidence())
    tier.draw({"chain": 100_000}, None)
    joint = completed(fixture, counted_ends(fixture, torch.from_numpy(tier.tallies["chain"].nodes()[2])))
    expected = target_joint(fixture, 3)
    assert joint.sum() == pytest.approx(1)
    assert ((joint - expected).abs() <= 6 * (expected / 100_000).sqrt() + 1e-9).all()


# --- Injected uniforms and the search for thresholds ---


class Float32Thresholds(TokenSteps):
    """The sound rule in single precision, as a kernel computes it."""

    def accepts(self, p, q, u):
        return u.float() * q.float() < p.float()


def test_injection_measures_how_exactly_thresholds_are_placed():
    sound, single = MaskedVerifier(), Float32Thresholds()
    for fixture in small_fixtures():
        assert injected_error(sound, fixture).margin <= 1e-13
    errors = [injected_error(single, fixture) for fixture in small_fixtures()]
    assert all(each.error <= 1e-12 for each in errors)  # at the middle of each box it decides right
    assert 1e-9 <= max(each.margin for each in errors) <= 1e-6


@pytest.mark.parametrize("flawed", [accept.Lenient(), bonus.PreviousRowBonus(), residual.UnscaledBlockResidual()])
def test_injection_on_a_rules_grid_sees_flawed_code(flawed):
    """At the middle of a box, or beside a threshold that is out of place: UnscaledBlockResidual shows only there."""
    found = injected_error(flawed, FIXTURES["chain"])
    assert found.error > 1e-3 or found.margin > 1e-3


def test_searched_tv_of_accepting_everything_is_that_of_the_draft():
    fixture = FIXTURES["chain"]
    drafts = all_drafts(fixture, 2)
    nothing = [torch.zeros(3, dtype=torch.float64), torch.zeros(9, dtype=torch.float64)]
    ends = [*nothing, (drafts.weight[:, None] * drafts.p[:, 2]).flatten()]
    assert searched_tv(accept.AcceptsEverything(), fixture) == pytest.approx(joint_tv(fixture, ends), abs=1e-9)


def test_searched_tv_knows_what_it_cannot_enumerate():
    for name in ("shared_gumbel", "seed_of_first_row", "writes_other_rows"):
        assert searched_tv(FLAWED[f"flawed/{name}"], FIXTURES["chain"]) is None


def test_draft_samplers_belong_to_the_search():
    """An argmax draft is one draft, whatever its uniforms."""
    fixture = FIXTURES["chain"]
    assert searched_tv(wrong_q.ArgmaxDraft(), fixture) > 0.1
    assert searched_tv(accept.Lenient(), fixture) == pytest.approx(injected_error_of_lenient(fixture), abs=1e-6)


def injected_error_of_lenient(fixture) -> float:
    drafts = all_drafts(fixture, 2)
    law = token_law(drafts)
    accept_prob = (law.accept * 0 + _ratio(drafts) / 0.8).clamp(max=1)
    reach = torch.cat([torch.ones(len(accept_prob), 1, dtype=torch.float64), accept_prob.cumprod(1)], 1)
    refuse = torch.cat([1 - accept_prob, torch.ones(len(accept_prob), 1, dtype=torch.float64)], 1)
    return joint_tv(fixture, law_ends(fixture, drafts, dataclasses.replace(law, length=reach * refuse)))


def _ratio(drafts) -> torch.Tensor:
    chosen = drafts.tokens[:, :, None]
    return (drafts.p[:, :-1].gather(2, chosen) / drafts.q.gather(2, chosen))[:, :, 0]


def test_extremes_find_what_is_too_rare_to_be_drawn():
    sound = [extreme_failures(MaskedVerifier(), fixture)[1] for fixture in FIXTURES.values()]
    assert sum(sound) == 0
    assert extreme_failures(accept.ZeroAcceptsZero(), FIXTURES["zeros"])[1] > 0
    assert extreme_failures(residual.OutsideVocabulary(), FIXTURES["chain"])[1] > 0


# --- Tests, power, bounds ---


def test_g_test_fails_hard_on_a_forbidden_token():
    probs = np.array([[0.5, 0.5, 0.0]])
    assert node_g_test(np.array([[500, 500, 0]]), probs).p_value == 1.0
    assert node_g_test(np.array([[500, 499, 1]]), probs).p_value == 0.0


def test_g_test_agrees_with_scipy_and_pools_rare_cells():
    counts, probs = np.array([[480, 330, 190]]), np.array([[0.5, 0.3, 0.2]])
    ours = node_g_test(counts, probs)
    theirs = stats.power_divergence(counts[0], probs[0] * 1000, lambda_="log-likelihood")
    assert (ours.statistic, ours.p_value) == pytest.approx((theirs.statistic, theirs.pvalue))
    pooled = node_g_test(np.array([[500, 497, 2, 1]]), np.array([[0.5, 0.4975, 0.0015, 0.001]]))
    assert pooled.dof == 1
    assert pooled.pooled == pytest.approx(0.0025)


def test_draws_of_the_power_calculation_have_that_power():
    """The worst case for two cells: bias of TV 0.02 at power 0.9 and false alarm 0.01, 1,000 experiments."""
    draws = draws_needed(0.02, 1, 0.9, 0.01)
    rng = np.random.default_rng(0)
    counts = rng.binomial(draws, 0.52, 1000)
    p_values = [node_g_test(np.array([[k, draws - k]]), np.array([[0.5, 0.5]])).p_value for k in counts]
    assert 0.85 <= np.mean(np.array(p_values) < 0.01) <= 0.95
    assert detectable_tv(draws, 1, 0.9, 0.01) == pytest.approx(0.02, rel=1e-3)
    # What a table of the noncentral chi-square gives for TV 1e-3, power 0.99, false alarm 1e-6.
    assert draws_needed(1e-3, 15, 0.99, 1e-6) == pytest.approx(2.02e7, rel=0.01)


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
    fixture = large_fixture(2000)
    table = PitTable(fixture)
    p_values = []
    for verifier in (MaskedVerifier(), residual.TargetResidual()):
        generator = torch.Generator().manual_seed(0)
        steps = verified_steps(verifier, fixture, Streams(torch.arange(1500), torch.zeros(1500, dtype=torch.int64), 3))
        values = table.values(steps, generator).flatten().numpy()
        p_values.append(ks_uniform(values[~np.isnan(values)])[1])
    assert p_values[0] > 1e-7
    assert p_values[1] < 1e-12
    assert ks_upper_bound(0.01, 10_000) == pytest.approx(0.01 + math.sqrt(math.log(200) / 20_000))


def test_p_values_of_a_sound_verifier_are_uniform():
    """13 seeds on every fixture, joint and acceptance: Kolmogorov's test at 1e-7."""
    found = p_values(MaskedVerifier(), seeds=13, draws=5000, seed=0, device=CPU)
    for test in (JOINT, ACCEPTANCE):
        own = [each.p_value for each in found if each.test == test]
        assert len(own) == 13 * len(small_fixtures())
        assert stats.kstest(own, "uniform").pvalue > 1e-7


def test_the_suite_uses_its_false_alarm_and_its_power():
    settings = Settings(vocabulary=0, serial_draws=0)
    needed = planned_draws(FIXTURES["chain"], settings)
    assert needed == draws_needed(1e-3, 26, 0.99, 1e-6 * 0.97 / 8)
    assert planned_draws(FIXTURES["chain"], dataclasses.replace(settings, draws=7)) == 7
    for bad in ({"power": 1.0}, {"draws": -1}, {"vocabulary": 5}):
        with pytest.raises(ConfigError, match=next(iter(bad))):
            Settings(**bad)


def test_runs_of_different_seeds_share_no_stream():
    tier = [SmallTier(MaskedVerifier(), [FIXTURES["chain"]], seed, CPU, Evidence()) for seed in (0, 1, 2)]
    assert len({each.first_seed for each in tier}) == 3
    assert tier[1].first_seed - tier[0].first_seed > 10**12


# --- Evidence over whole texts ---


def token_evidence(p: np.ndarray, q: np.ndarray, token: int) -> eprocess.TokenEvidence:
    tempered = tuple(float(np.log((p**a).sum())) for a in eprocess.TEMPERED)
    return eprocess.TokenEvidence(
        float(np.log(p[token])), float(np.log(q[token])), bool(token == p.argmax()), tempered, True
    )


def test_bets_are_fair_under_the_target():
    """Every factor has mean 1 under p, which makes the product a martingale."""
    rng = np.random.default_rng(3)
    p, q = rng.dirichlet(np.ones(6)), rng.dirichlet(np.ones(6))
    means = sum(p[x] * np.exp(eprocess.log_factors(token_evidence(p, q, x))) for x in range(6))
    assert means == pytest.approx(np.ones(len(eprocess.bets())))


def test_evidence_grows_against_the_draft_and_not_against_the_target():
    rng = np.random.default_rng(4)
    reached = {}
    for name, mix in (("target", 0.0), ("half draft", 0.5)):
        factors = []
        for _ in range(800):
            p, q = rng.dirichlet(np.ones(6)), rng.dirichlet(np.ones(6))
            factors.append(eprocess.log_factors(token_evidence(p, q, rng.choice(6, p=(1 - mix) * p + mix * q))))
        mixture, _ = eprocess.paths(np.array(factors))
        reached[name] = eprocess.e_value(mixture)
    assert reached["target"] < 6  # exceeded with probability 1e-6, by Ville's inequality
    assert reached["half draft"] > 6


def test_a_verifier_declared_lossless_wrongly_is_not_believed():
    """Its code is right at the middle of every box of the rule's grid, and wrong beside a threshold."""

    class Liar(residual.UnscaledBlockResidual):
        lossless = True

    rows = {row.fixture: row for row in exact_tier(Liar(), 10, 0, CPU)}
    assert rows["chain"].lossless is False
    assert rows["chain"].error == pytest.approx(0.0064, abs=5e-4)


def test_a_forbidden_token_is_infinite_evidence():
    forbidden = eprocess.TokenEvidence(-math.inf, -1.0, False, (0.0,) * len(eprocess.TEMPERED), False)
    assert eprocess.log_factors(forbidden) == [math.inf] * len(eprocess.bets())


# --- Differential verification, other projects' tests, certificates ---


class NearlySound(TokenSteps):
    """Places thresholds wrongly by a relative 1e-7."""

    def accepts(self, p, q, u):
        return u * q * (1 - 1e-7) < p


def test_divergences_are_classed_by_their_margin():
    fixture = FIXTURES["processed"]
    drafts = all_drafts(fixture, 1)
    chosen = int((token_law(drafts).accept[:, 0] < 0.9).nonzero()[0])
    threshold = float(token_law(drafts).accept[chosen, 0])
    edges = fixture.q[0].cumsum(0)
    token = int(drafts.tokens[chosen, 0])
    given = torch.full((3, 1, 2), 0.5, dtype=torch.float64)
    given[Stream.DRAFT, 0, 0] = float(edges[token] - fixture.q[0, token] / 2)
    given[Stream.ACCEPT, 0, 0] = threshold * (1 + 5e-8)  # refused by the rule, accepted by the other
    streams = GivenStreams.of(given)
    one, two = (verified_steps(each, fixture, streams) for each in (MaskedVerifier(), NearlySound()))
    found = explain(fixture, "token", one, two, streams, 0)
    assert (found.kind, found.offset, found.cause) == ("accept", 0, "rounding")
    assert found.threshold == pytest.approx(threshold, abs=1e-15)
    assert found.margin == pytest.approx(5e-8 * threshold, rel=1e-3)


def test_comparison_of_a_bug_is_structural_and_of_equals_is_empty():
    fixture = FIXTURES["chain"]
    equal = compare(MaskedVerifier(), TokenSteps(), fixture, 500, 0, CPU)
    assert (equal.requests, equal.divergences) == (500, [])
    lenient = compare(MaskedVerifier(), accept.Lenient(), fixture, 500, 0, CPU)
    assert lenient.count("structural") == len(lenient.divergences) > 10
    assert all(each.kind == "accept" and each.uniform > each.threshold for each in lenient.divergences)
    wrong = compare(MaskedVerifier(), residual.TargetResidual(), fixture, 500, 0, CPU)
    assert {each.kind for each in wrong.divergences} == {"emit"}
    early = compare(BlockVerifier(), accept.BlockEarlyStop(), FIXTURES["deep"], 500, 0, CPU)
    assert {each.cause for each in early.divergences} == {"structural"}


def test_what_other_projects_tests_miss():
    assert not any(elsewhere(MaskedVerifier(), 0, CPU).values())
    assert not any(elsewhere(bonus.PreviousRowBonus(), 0, CPU).values())
    assert all(elsewhere(accept.AcceptsEverything(), 0, CPU).values())


def certificate_of(verifier, settings: Settings, enumerate_it: bool = True):
    evidence = examine(verifier, settings, 0, CPU)
    exact = exact_tier(verifier, 10, 0, CPU) if enumerate_it else []
    return certify(
        verifier="mine", rule=verifier.rule, declared_lossless=verifier.lossless, evidence=evidence, exact=exact,
        settings=settings, seed=0, command="python -m specbench", environment={"commit": "abc"},
        bias=[vars(row) for row in bias_rows(evidence, exact)],
    )  # fmt: skip


@pytest.mark.usefixtures("few_enumerated")
def test_certificates_say_what_was_found():
    settings = Settings(draws=20_000, serial_draws=0, vocabulary=0, stop_when_caught=True)
    good = certificate_of(MaskedVerifier(), settings)
    assert good.verdict == LOSSLESS
    assert good.tv_upper_bound < good.detectable_tv * 1.5 < 0.1
    assert json.loads(good.json())["tests"][0]["draws"] == 20_000
    assert "| chain | joint | 20,000 |" in markdown(good)
    bad = certificate_of(bonus.PreviousRowBonus(), settings)
    assert bad.verdict == NOT_LOSSLESS
    assert "rejects it after" in bad.words
    assert bad.bias[0]["tv"] == pytest.approx(bad.bias[0]["observed_tv"], abs=0.02)
    slow = certificate_of(FLAWED["flawed/trimmed_context"], settings, enumerate_it=False)
    assert slow.verdict == NOT_REJECTED
    assert "does not accept as its rule does" in slow.words


def test_refused_fixtures_are_named():
    from specbench.errors import ArgumentError

    class OnlySampled(MaskedVerifier):
        def verify(self, draft, target, streams):
            if draft.rows is None:
                raise ArgumentError("draft.rows: None is not supported")
            return super().verify(draft, target, streams)

    evidence = examine(OnlySampled(), Settings(draws=2000, serial_draws=0, vocabulary=0), 0, CPU)
    assert set(evidence.unsupported) >= {"one_hot"}
    assert not evidence.rejected
    assert "one_hot" not in evidence.tallies
