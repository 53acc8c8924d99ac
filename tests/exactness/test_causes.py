"""Which known bug a certificate names as the likely cause: the right one, or none."""

import dataclasses
import re

import pytest
import torch

from specbench.core.rng import Stream
from specbench.core.types import Verification
from specbench.exactness.certificate.words import say
from specbench.exactness.draws.probes import Probe
from specbench.exactness.enumeration.injection import Point, expected_of, inject
from specbench.exactness.failures import fixture_failure
from specbench.exactness.failures import likely_cause as causes
from specbench.exactness.failures.likely_cause import REQUESTS, CauseSearch
from specbench.exactness.settings import Settings
from specbench.exactness.streams import uniforms
from specbench.exactness.verdict import verdict_of
from specbench.exactness.zoo import accept, residual, wrong_q
from specbench.exactness.zoo.bugs import bugs, card, flawed
from specbench.exactness.zoo.steps import BlockSteps, TokenSteps
from specbench.rules import batched
from specbench.rules.block.masked import BlockVerifier
from specbench.rules.rule import rule_of
from specbench.rules.token.masked import MaskedVerifier
from specbench.sampling import inverse_cdf
from tests.exactness.test_probes import Strip
from tests.helpers.cases import FIXTURES, examined
from tests.helpers.made_up_verifiers import changed

pytestmark = pytest.mark.usefixtures("unchecked")


def at_points(verifier, wrong: list[Point], right: list[Point] | None = None) -> str:
    """The cause that these points show, of code that is too slow for other requests."""
    return CauseSearch(verifier, [], 0, 0).cause(wrong, right or [])


def wrong_points(verifier, name: str) -> list[Point]:
    fixture = FIXTURES[name]
    u = torch.rand((3, 2000, fixture.gamma + 1), dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    expected = expected_of(rule_of(verifier), fixture, u)
    differ = (inject(verifier, fixture, u).visible != expected).any(dim=1)
    return [Point(fixture, u[:, b]) for b in differ.nonzero()[:100, 0].tolist()]


def test_code_with_a_known_bug_is_told_which():
    mine = changed(accept.Lenient)  # user code with that bug
    cause = at_points(mine, wrong_points(mine, "chain"))
    assert "lenience" in cause
    assert "flawed/lenient does in 100 of 100" in cause
    other = residual.TargetResidual()
    assert "replaced by a plain draw" in at_points(other, wrong_points(other, "chain"))


def test_an_unknown_bug_has_no_known_cause_and_sound_code_none():
    wide = Strip(0.5)
    assert at_points(wide, wrong_points(wide, "chain")) == ""
    assert at_points(MaskedVerifier(), [Point(FIXTURES["chain"], torch.full((3, 3), 0.3, dtype=torch.float64))]) == ""


def test_a_cause_is_in_our_own_words_and_needs_ten_requests():
    """No page names another project's issue as if it were the reader's; a few requests fit many bugs."""
    for bug in bugs():
        assert not re.search(r"issue|PR \d|arXiv|mutant", causes._SOURCE.sub("", card(bug))), bug
    verifier = accept.FirstUnverified()
    points = wrong_points(verifier, "chain")
    assert at_points(verifier, points).startswith("The loop starts at the second drafted token: draft[0] is never")
    assert "issue" not in at_points(verifier, points)
    assert at_points(verifier, points[:9]) == ""
    assert at_points(verifier, points[:10]) != ""


# Accepts a little too much: less than coarse_uniform of the zoo does, which accepts the same and more.
SLIGHTLY_KIND = changed(accepts=lambda _, p, q, u: u * q < p * (1 + 1e-4))


def test_a_larger_bug_is_not_the_cause_of_a_smaller_one():
    """Its wrong requests lie between two thresholds, and next to them are some that it gets right."""
    probes = {"chain": Probe(SLIGHTLY_KIND, FIXTURES["chain"], 1.0)}
    samples = sorted(fixture_failure._in_models(SLIGHTLY_KIND, probes), key=lambda sample: -sample.share)
    wrong, beside = [sample.point for sample in samples], [point for sample in samples for point in sample.beside]
    assert len(beside) > len(wrong) > 10
    assert "coarse_uniform" in at_points(SLIGHTLY_KIND, wrong)
    assert at_points(SLIGHTLY_KIND, wrong, beside) == ""


def cause_of(verifier, *names: str) -> str:
    fixtures = [FIXTURES[name] for name in names] or list(FIXTURES.values())
    return CauseSearch(verifier, fixtures, 0, REQUESTS).cause()


class ShiftedBlock(BlockVerifier):
    """Block verification that tests the first drafted token with the uniform of the second, and so on."""

    def verify(self, draft, target, streams):
        made = uniforms(streams).clone()
        made[Stream.ACCEPT] = made[Stream.ACCEPT].roll(-1, dims=1)
        return super().verify(draft, target, dataclasses.replace(streams, made=made))


class OftenPlain(TokenSteps):
    """Replaces a refused token by a plain draw, as target_residual does, for half of the requests."""

    def verify(self, draft, target, streams):
        sound, plain = (kind().verify(draft, target, streams) for kind in (TokenSteps, residual.TargetResidual))
        chosen = streams.uniform(Stream.EMIT)[:, :1] < 0.5
        return Verification(torch.where(chosen, plain.token_ids, sound.token_ids), sound.num_accepted)


def shifted_uniforms(_, draft, streams):
    """The accept uniforms from offset 1 on: sound, of another order."""
    return streams.uniform(Stream.ACCEPT)[draft.request_of_row, batched.offsets(draft) + 1]


def drawn_at_accept(_, weights, draft, streams, num_accepted):
    """The recovered or bonus token, drawn with the accept uniform at its place."""
    return inverse_cdf(weights, streams.uniform(Stream.ACCEPT).gather(1, num_accepted[:, None])[:, 0])


SWAPPED_RATIO = changed(accepts=lambda _, p, q, u: u < q / p)
SHIFTED_TESTS = changed(accept_uniforms=shifted_uniforms)
SOUND = {  # they follow another rule than the one they name, or read other uniforms
    changed(BlockVerifier, rule="token"): "It follows the block rule: it has all tokens of that rule in 768 requests",
    ShiftedBlock(): "by the block rule: drafted token i is tested with ACCEPT at offset i + 1. (With these",
    SHIFTED_TESTS: "by the token rule: drafted token i is tested with ACCEPT at offset i + 1. (With these",
}
KNOWN = {
    **SOUND,
    SWAPPED_RATIO: "p and q have changed places in the accept test",
    changed(emit=drawn_at_accept): "is drawn with ACCEPT at offset num_accepted, which also refused the drafted token.",
}


@pytest.mark.usefixtures("few_enumerated", "little_effort")
@pytest.mark.parametrize("verifier", KNOWN)
def test_a_certificate_names_well_known_bugs(verifier):
    settings = Settings(draws=2000, seconds=0, serial_draws=0, calls=12, use_calls=0)
    evidence = examined(verifier, settings, inputs_seed=1)
    assert KNOWN[verifier] in evidence.failure.cause
    assert "in 768 requests on small pairs" in evidence.failure.cause
    words = say("sentences", verdict_of(evidence), evidence, settings)
    assert ("The simplest failing example names the likely cause." in words) == (verifier in SOUND)


@pytest.mark.cases(8)
@pytest.mark.parametrize("bug", bugs())
def test_no_bug_is_taken_for_another(bug):
    """Not even late_draft_row for first_unverified, which emits the same tokens wherever one pair of models differs."""
    cause = cause_of(flawed(bug))
    assert not cause or f"flawed/{bug} " in cause


def test_unknown_bugs_sound_code_and_ambiguous_requests_have_no_cause():
    rolled = BlockSteps.accepted_length  # whose order of uniforms is not looked for
    of_rolled = changed(BlockSteps, accepted_length=lambda *rest: rolled(*rest[:-1], rest[-1].roll(1, dims=1)))
    for verifier in (Strip(0.5), SLIGHTLY_KIND, OftenPlain(), MaskedVerifier(), of_rolled):
        assert cause_of(verifier) == ""
    alike = [accept.AcceptsEverything(), SWAPPED_RATIO]  # if the draft is one-hot
    assert [cause_of(verifier, "one_hot") for verifier in alike] == ["", ""]
    assert all(cause_of(verifier, "one_hot", "chain") for verifier in alike)
    assert cause_of(SHIFTED_TESTS, "processed") == ""  # of two offsets the next one is the one before, too


@pytest.mark.parametrize("verifier", [wrong_q.LateDraftRow(), SHIFTED_TESTS], ids=["zoo", "uniforms"])
def test_requests_show_a_cause_if_enough_are_wrong(verifier, monkeypatch):
    search = CauseSearch(verifier, list(FIXTURES.values()), 0, REQUESTS)
    for fewest, named in ((search._wrong, True), (search._wrong + 1, False)):
        monkeypatch.setattr(causes, "_FEWEST", fewest)
        assert (search.cause() != "") == named
