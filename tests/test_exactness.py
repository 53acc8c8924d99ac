"""Every verifier of conf/verifier: the lossless pass the laboratory's suite, the flawed are caught; and how it judges.

False alarms: the suites of the lossless verifiers run at 1e-8 each and with fixed seeds; all other statistical asserts
here have fixed seeds and bounds that chance breaks with a probability far below 1e-6.
"""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf

from specbench.exactness import suite
from specbench.exactness.bias import bias_rows
from specbench.exactness.certificate import LOSSLESS, NOT_LOSSLESS, NOT_REJECTED, certify, markdown
from specbench.exactness.differential import compare, explain
from specbench.exactness.elsewhere import elsewhere
from specbench.exactness.enumeration import LAWS, all_drafts, token_law
from specbench.exactness.evidence import Settings
from specbench.exactness.exact import exact_tier
from specbench.exactness.fixtures import greedy_fixture, small_fixtures
from specbench.exactness.injection import GivenStreams
from specbench.exactness.search import searched_tv
from specbench.exactness.steps import verified_steps
from specbench.exactness.suite import examine
from specbench.rng import Stream, Streams
from specbench.verifiers.block import BlockVerifier
from specbench.verifiers.flawed import accept, bonus, residual
from specbench.verifiers.flawed.base import BlockSteps, TokenSteps
from specbench.verifiers.masked import MaskedVerifier
from tests.cases import CPU, FIXTURES, FLAWED, amount
from tests.test_verifiers import VERIFIERS as INSTALLED

CONF = Path(__file__).parent.parent / "conf"
SOUND = {name: verifier for name, verifier in INSTALLED.items() if verifier.lossless}
# A verifier too slow for 40,000 steps on every fixture gets two seconds: it shows larger biases only.
SHORT = Settings(
    false_alarm=1e-8, draws=40_000, patience=10, seconds=2, serial_draws=10_000, vocabulary=3000, vocabulary_draws=500,
    vocabulary_seconds=1,
)  # fmt: skip
INTERPRETED = dataclasses.replace(SHORT, draws=2, serial_draws=0, vocabulary=0, patience=1, seconds=1)
HUNT = Settings(draws=100_000, serial_draws=20_000, vocabulary=0, stop_when_caught=True)


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
        enumerated = [row.rule_error for row in exact if row.fixture in FIXTURES]
        assert all(error is not None and error <= 1e-12 for error in enumerated)


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
        for fixture in (*small_fixtures(), greedy_fixture()):
            streams = Streams(torch.arange(3000), torch.full((3000,), 5), fixture.gamma + 1)
            one, two = (verified_steps(each, fixture, streams) for each in (skeleton, sound))
            assert torch.equal(one.verification.token_ids, two.verification.token_ids)
            assert torch.equal(one.verification.num_accepted, two.verification.num_accepted)


def test_a_verifier_declared_lossless_wrongly_is_not_believed():
    """Its code is right at the middle of every box of the rule's grid, and wrong beside a threshold."""

    class Liar(residual.UnscaledBlockResidual):
        lossless = True

    rows = {row.fixture: row for row in exact_tier(Liar(), 10, 0, CPU)}
    assert rows["chain"].lossless is False
    assert rows["chain"].error == pytest.approx(0.0064, abs=5e-4)


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
