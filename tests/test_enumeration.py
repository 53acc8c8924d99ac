"""The exact tier: fixtures, enumeration of rules, injected uniforms, and the search for a verifier's thresholds."""

import dataclasses

import pytest
import torch

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
from specbench.exactness.evidence import Evidence
from specbench.exactness.injection import extreme_failures, injected_error
from specbench.exactness.search import searched_tv
from specbench.exactness.small import SmallTier
from specbench.verifiers.flawed import accept, bonus, residual, wrong_q
from specbench.verifiers.flawed.base import TokenSteps
from specbench.verifiers.masked import MaskedVerifier
from tests.cases import CPU, FIXTURES, FLAWED, every_fixture

# --- Fixtures and enumeration ---


@every_fixture
def test_no_two_rows_of_a_fixture_are_equal(fixture):
    if fixture.name == "greedy":
        return  # one-hot rows
    fixture = fixture.variant(0)
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
    for fixture in FIXTURES.values():
        assert injected_error(sound, fixture).margin <= 1e-13
    errors = [injected_error(single, fixture) for fixture in FIXTURES.values()]
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
