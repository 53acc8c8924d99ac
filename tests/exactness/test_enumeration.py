"""Fixtures, and the enumeration of rules by their formulas."""

import dataclasses

import pytest
import torch

from specbench.exactness.draws.probes import Probe
from specbench.exactness.draws.small_pairs import SmallTier
from specbench.exactness.enumeration.laws import (
    all_drafts,
    completed,
    counted_ends,
    joint_tv,
    law_ends,
    law_of,
    prefixes,
    rule_error,
    rule_lengths,
    target_joint,
)
from specbench.exactness.enumeration.locate import locate
from specbench.exactness.evidence import Evidence
from specbench.exactness.fixtures import greedy_fixture, small_fixtures
from specbench.exactness.steps import draw, table_rows, verified
from specbench.exactness.streams import request_streams
from specbench.exactness.zoo import residual
from specbench.exactness.zoo.steps import BlockSteps, TokenSteps
from specbench.rules.block.masked import BlockVerifier
from specbench.rules.rule import ReferenceVerifier, Rule, rule_of, rules_with_formulas
from specbench.rules.token.formulas import RULE as TOKEN
from specbench.rules.token.masked import MaskedVerifier
from tests.helpers.cases import CPU, FIXTURES, every_fixture
from tests.rules.test_rules import BARE_BLOCK, LAZY, LENIENT

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
    assert [own.count for own in FIXTURES["ragged"].classes()] == [0, 1, 2]
    assert len({own.params for own in FIXTURES["mixed"].classes()}) == 3


@every_fixture
@pytest.mark.parametrize("rule", rules_with_formulas())
def test_rules_are_lossless_by_enumeration(fixture, rule):
    assert rule_error(rule, fixture) <= 1e-12


@every_fixture
def test_thresholds_above_1_accept_with_certainty(fixture):
    """A sound rule whose thresholds are not capped was taken for biased, where q has zeros."""
    rule = Rule(name="open", title="open rule", guarantee="lossless", thresholds=lambda path: path.ratio)
    assert rule_error(rule, fixture) <= 1e-12
    assert torch.equal(rule_lengths(rule, fixture), rule_lengths("token", fixture))


def test_enumeration_sees_a_wrong_residual():
    """Replacing the residual by the target: TV by hand for a one-token draft is the sum over x of the missing mass."""
    fixture = FIXTURES["processed"]
    drafts = all_drafts(fixture, 1)
    law = law_of(TOKEN, drafts)
    wrong = dataclasses.replace(law, emit=drafts.p.clone())
    p, q = fixture.p[0], fixture.q[0]
    refused = (q - torch.minimum(p, q)).sum()
    by_hand = 0.5 * (torch.minimum(p, q) + refused * p - p).abs().sum()
    assert joint_tv(fixture, law_ends(fixture, drafts, wrong)) == pytest.approx(float(by_hand), abs=1e-12)
    model = locate(residual.TargetResidual(), fixture)
    assert model.tv == pytest.approx(float(by_hand), abs=1e-9)


def test_block_verification_accepts_more_than_token_verification():
    for fixture in FIXTURES.values():
        numbers = torch.arange(fixture.gamma + 1).double()
        token, block = (float(rule_lengths(rule, fixture)[-1] @ numbers) for rule in ("token", "block"))
        assert block >= token - 1e-12


def test_counts_give_the_joint_back():
    """Tallied steps of a sound verifier, completed with the target: the joint to sampling noise."""
    fixture = FIXTURES["chain"]
    probe = Probe(MaskedVerifier(), fixture, 0.0)
    SmallTier(MaskedVerifier(), {"chain": probe}, 3, CPU, Evidence()).draw({"chain": 100_000})
    joint = completed(fixture, counted_ends(fixture, torch.from_numpy(probe.tally.nodes()[2])))
    expected = target_joint(fixture, 3)
    assert joint.sum() == pytest.approx(1)
    assert ((joint - expected).abs() <= 6 * (expected / 100_000).sqrt() + 1e-9).all()


def test_prefixes_are_numbered_in_lexicographic_order():
    for fixture in (FIXTURES["zeros"], next(candidate for candidate in small_fixtures() if candidate.name == "long")):
        tokens = torch.cartesian_prod(torch.arange(fixture.vocabulary), torch.arange(fixture.vocabulary))
        rows = table_rows(fixture, torch.zeros(len(tokens), dtype=torch.int64), padded(tokens, fixture.gamma + 1))
        assert torch.equal(fixture.prefix_rows(2), rows[:, 2])
        numbers = prefixes(tokens, fixture.vocabulary)
        assert numbers[:, 2].tolist() == list(range(fixture.vocabulary**2))
        assert torch.equal(numbers[:, 1], tokens[:, 0])


def padded(tokens: torch.Tensor, width: int) -> torch.Tensor:
    return torch.nn.functional.pad(tokens, (0, width - tokens.shape[1]))


# --- The reference: what a rule emits, from the tables and the formulas ---


RULES = [ReferenceVerifier(rule) for rule in (LAZY, LENIENT, BARE_BLOCK)]
ZOO = [TokenSteps(), BlockSteps()]  # whose flawed verifiers differ from a sound rule in their bug alone


@pytest.mark.parametrize(
    "verifier", [MaskedVerifier(), BlockVerifier(), *ZOO, *RULES], ids=lambda verifier: rule_of(verifier).name
)
def test_the_reference_is_the_rule(verifier):
    """Other code than the verifiers', from other numbers: the tables' probabilities, not the rows that are verified."""
    for fixture in (*small_fixtures(), greedy_fixture()):
        streams = request_streams(5, 0, 3000, fixture.gamma + 1, CPU)
        drawn = draw(verifier, fixture, streams)
        steps, reference = verified(verifier, drawn), drawn.expected(rule_of(verifier))
        assert torch.equal(steps.verification.token_ids, reference.token_ids), fixture.name
        assert torch.equal(steps.verification.num_accepted, reference.num_accepted)
