"""Where code's thresholds lie, what bias they imply, and proofs over whole boxes."""

import dataclasses

import pytest
import torch

from specbench.core.rng import Stream
from specbench.exactness.enumeration.injection import calls_a_request, extreme_failures, inject
from specbench.exactness.enumeration.laws import all_drafts, joint_tv, law_ends, law_of
from specbench.exactness.enumeration.locate import locate
from specbench.exactness.enumeration.proof import proved
from specbench.exactness.failures.wrong_points import between_thresholds
from specbench.exactness.streams import GivenStreams
from specbench.exactness.zoo import accept, residual, wrong_q
from specbench.exactness.zoo.steps import TokenSteps
from specbench.rules import batched
from specbench.rules.block.masked import BlockVerifier
from specbench.rules.matching import MatchingVerifier
from specbench.rules.token.formulas import RULE as TOKEN
from specbench.rules.token.masked import MaskedVerifier
from specbench.rules.token.naive import NaiveVerifier
from specbench.sampling import inverse_cdf
from tests.exactness.test_probes import Strip
from tests.helpers.cases import FIXTURES, FLAWED
from tests.helpers.made_up_verifiers import acting, changed


class Mantissa(TokenSteps):
    """The residual's weights rounded to some bits, as float16 (10) or bfloat16 (7) arithmetic would."""

    def __init__(self, bits: int):
        self.bits = bits

    def residual(self, p, q):
        mantissa, exponent = torch.frexp(batched.residual(p, q))
        return torch.ldexp((mantissa * 2.0 ** (self.bits + 1)).round() / 2.0 ** (self.bits + 1), exponent)


class Backwards(TokenSteps):
    """Right, with the emitted token drawn from the last to the first."""

    def emit(self, weights, draft, streams, num_accepted):
        reverse = inverse_cdf(weights.flip(1).contiguous(), streams.uniform(Stream.EMIT)[:, 0])
        return weights.shape[1] - 1 - reverse


def tv_of(verifier, name: str = "chain") -> float | None:
    fixture = FIXTURES[name]
    models = [locate(verifier, own) for own in fixture.classes()]
    return None if None in models else max(model.tv for model in models if model is not None)


def by_formula(fixture, bits: int) -> float:
    """Total variation of the token rule with the residual of Mantissa, summed over drafts."""
    drafts = all_drafts(fixture, fixture.gamma)
    law, rounded = law_of(TOKEN, drafts), Mantissa(bits)
    emit = law.emit.clone()
    for i in range(fixture.gamma):
        weights = rounded.residual(drafts.p[:, i], drafts.q[:, i])
        emit[:, i] = weights / weights.sum(dim=1, keepdim=True)
    return joint_tv(fixture, law_ends(fixture, drafts, dataclasses.replace(law, emit=emit)))


@pytest.mark.cases(6, 12)
@pytest.mark.parametrize("bits", [8, 10, 12, 14, 16, 18, 20])
@pytest.mark.parametrize("name", ["chain", "zeros", "one_hot"])
def test_a_bias_far_below_what_draws_show_is_located(bits, name):
    """At 12 bits strips are 1e-4 of a uniform wide, at 20 bits 1e-6; the formula's total variation to a thousandth."""
    tv = by_formula(FIXTURES[name], bits)
    assert tv_of(Mantissa(bits), name) == pytest.approx(tv, rel=1e-3, abs=1e-12)
    assert 2.0 ** -(bits + 8) < tv < 2.0**-bits


@pytest.mark.cases(1, 2)
@pytest.mark.parametrize("verifier", [MaskedVerifier(), BlockVerifier(), Backwards()])
def test_sound_code_has_no_bias_wherever_its_thresholds_are(verifier):
    for name in ("chain", "deep", "ties", "ragged"):
        assert tv_of(verifier, name) < 1e-12


def test_every_variant_and_draft_length_has_a_model_of_its_own():
    fixture = FIXTURES["mixed"]
    tvs = [locate(accept.Lenient(), own).tv for own in fixture.classes()]
    assert len({round(tv, 6) for tv in tvs}) == 3
    assert tvs[2] == 0  # greedy


def test_what_cannot_be_located_is_said_to_be():
    for name in ("shared_gumbel", "noisy_draft"):
        assert tv_of(FLAWED[f"flawed/{name}"]) is None


def test_draft_samplers_belong_to_the_code():
    """An argmax draft is one draft, whatever its uniforms."""
    fixture = FIXTURES["chain"]
    model = locate(wrong_q.ArgmaxDraft(), fixture)
    assert len(model.grid.tree.paths) == 1
    assert model.tv > 0.1


def test_accepting_everything_is_as_far_from_the_target_as_the_draft():
    fixture = FIXTURES["chain"]
    drafts = all_drafts(fixture, 2)
    nothing = [torch.zeros(3, dtype=torch.float64), torch.zeros(9, dtype=torch.float64)]
    ends = [*nothing, (drafts.weight[:, None] * drafts.p[:, 2]).flatten()]
    assert tv_of(accept.AcceptsEverything()) == pytest.approx(joint_tv(fixture, ends), abs=1e-9)


def test_a_model_foresees_what_code_emits():
    """On 20,000 points that it was not made from; the points of one box have one outcome, those of others others."""
    fixture = FIXTURES["zeros"]
    for verifier in (MaskedVerifier(), BlockVerifier(), accept.Lenient(), MatchingVerifier(coupled=True)):
        model = locate(verifier, fixture)
        uniforms = torch.rand((3, 20_000, 3), dtype=torch.float64, generator=torch.Generator().manual_seed(7))
        assert torch.equal(model.predict(uniforms), inject(verifier, fixture, uniforms).visible)
        assert len(model.tokens.unique(dim=0)) > 5


def test_extremes_find_what_is_too_rare_to_be_drawn():
    assert not any(extreme_failures(MaskedVerifier(), fixture)[1] for fixture in FIXTURES.values())
    assert extreme_failures(accept.ZeroAcceptsZero(), FIXTURES["zeros"])[1]
    calls, failures = extreme_failures(residual.OutsideVocabulary(), FIXTURES["mixed"])
    assert calls == 4 * 9 * 3
    tried = {failure.point.fixture.params for failure in failures}
    assert tried > {FIXTURES["mixed"].params[1:2]}  # every variant is tried


# --- Proofs ---


@pytest.mark.cases(8)
@pytest.mark.parametrize("verifier", [MaskedVerifier(), BlockVerifier(), MatchingVerifier(coupled=False)])
@pytest.mark.parametrize("name", ["chain", "zeros", "one_hot", "mixed", "greedy"])
def test_plain_tensor_operations_are_proved(verifier, name):
    fixture = FIXTURES[name].variant(0)
    model = locate(verifier, fixture)
    assert proved(verifier, model)
    assert model.tv < 1e-12


class OfSelected(TokenSteps):
    """Reads the uniforms of requests that it has selected, of all of them in their order."""

    def read(self, draft, target, streams):
        return draft, target, streams.select(torch.arange(len(streams.seeds)))


class StripOfSelected(OfSelected, Strip):
    pass


class StripOfMade(Strip):
    """Reads the uniforms that its streams have as numbers, if they have any."""

    def read(self, draft, target, streams):
        given = streams if streams.made is None else GivenStreams.of(streams.made, streams)
        return draft, target, given


def test_a_proof_is_of_the_code_and_of_the_whole_box():
    fixture = FIXTURES["chain"]
    sound = locate(TokenSteps(), fixture)
    assert proved(TokenSteps(), sound)
    assert not proved(Strip(1e-4), sound)  # right at the middle of every box, and not everywhere in it
    assert proved(OfSelected(), sound)
    assert not proved(StripOfSelected(1e-4), sound)
    assert not proved(StripOfMade(1e-4), sound)
    assert not proved(accept.Lenient(), sound)  # another model's boxes
    numbers = lambda p, q, u: zip(p.tolist(), q.tolist(), u.tolist(), strict=True)  # noqa: E731
    branches = changed(accepts=lambda _, *pqu: torch.tensor([u * q < p for p, q, u in numbers(*pqu)]))
    assert not proved(branches, sound)  # decisions in Python prove nothing, right as they are
    lenient = locate(accept.Lenient(), fixture)
    assert proved(accept.Lenient(), lenient)  # a bias can be proved too
    assert lenient.tv > 0.1
    moved = dataclasses.replace(sound, tokens=sound.tokens.roll(1, dims=0))
    assert not proved(TokenSteps(), moved)


class Pole(TokenSteps):
    """Emits token 0 in a strip of 1e-5, which a division by the uniform tells from both of its sides."""

    def emit(self, weights, draft, streams, num_accepted):
        u = streams.uniform(Stream.EMIT)[:, 0]
        return torch.where(torch.ones(len(u)).double() / (u - 0.1234567) > 1e5, 0, inverse_cdf(weights, u))


def test_a_division_by_a_uniform_is_no_proof():
    sound = locate(TokenSteps(), FIXTURES["chain"])
    assert not proved(Pole(), sound)


def test_points_beyond_a_threshold_of_the_rule_are_found_and_nowhere_else():
    """Boxes that reach 1e-4 too far, as if the code's threshold lay there: all their other sides are the rule's."""
    model = locate(MaskedVerifier(), FIXTURES["chain"])
    boxes = model.boxes
    assert list(between_thresholds(TOKEN, model, boxes)) == []
    high = boxes.high.clone()
    ends = high[Stream.ACCEPT, :, 0]
    thresholds = ends[ends < 1].unique()
    ends[ends < 1] += 1e-4
    wrong_points = list(between_thresholds(TOKEN, model, dataclasses.replace(boxes, high=high)))
    accept_uniforms = torch.stack([wrong_point.point.given[Stream.ACCEPT, 0] for wrong_point in wrong_points])
    beyond = accept_uniforms[:, None] - thresholds
    assert len(wrong_points) >= len(thresholds) > 1
    assert ((beyond > 0) & (beyond < 1e-4)).any(dim=1).all()


# --- Calls of a request ---


@pytest.mark.usefixtures("unchecked")  # whose calls would be counted too
@pytest.mark.parametrize(("verifier", "least", "most"), [(MaskedVerifier(), 0, 1), (NaiveVerifier(), 8, 200)])
def test_python_calls_of_a_request_tell_slow_code(verifier, least, most):
    calls = [calls_a_request(verifier, FIXTURES["chain"]) for _ in range(2)]
    assert least <= calls[0] <= most
    assert calls[0] == calls[1]


def test_a_slow_first_call_does_not_make_code_slow():
    """As code is that sets something up in its first verification of each size."""
    sizes = set()

    def set_up(draft, target, streams):
        if (size := len(draft.num_draft_tokens)) not in sizes:
            sizes.add(size)
            for number in range(1000 * size):
                abs(number)

    assert calls_a_request(acting(set_up), FIXTURES["chain"]) < 1
