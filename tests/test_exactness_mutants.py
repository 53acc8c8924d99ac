"""What a newcomer may hand to the laboratory: right code that must not be slandered, wrong code that must not pass."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from specbench.exactness.enumeration.exact import ExactRow, exact_tier
from specbench.exactness.enumeration.search import search

from specbench.errors import ArgumentError, ConfigError
from specbench.exactness.certificate import LOSSLESS, NOT_LOSSLESS, NOT_REJECTED, Certificate, certify
from specbench.exactness.evidence import Settings
from specbench.exactness.fixtures import small_fixtures
from specbench.exactness.steps import check_result
from specbench.exactness.suite import examine
from specbench.rng import Stream
from specbench.sampling import inverse_cdf
from specbench.types import Verification
from specbench.verifiers import batched
from specbench.verifiers.flawed.base import TokenSteps
from specbench.verifiers.masked import MaskedVerifier

CPU = torch.device("cpu")
# 30,000 steps show biases of 0.03 and more; an exact verifier is rejected with probability 1e-7 a test of this file.
LOOK = Settings(
    draws=30_000, false_alarm=1e-7, serial_draws=4000, vocabulary=1500, vocabulary_draws=3000, vocabulary_seconds=0
)


def certificate_of(verifier, enumerate_too=True) -> Certificate:
    with torch.inference_mode():
        evidence = examine(verifier, LOOK, 5, CPU)
        exact = exact_tier(verifier, 200, 5, CPU) if enumerate_too else []
    about = {"verifier": type(verifier).__name__, "rule": verifier.rule, "declared_lossless": True, "seed": 5}
    return certify(**about, evidence=evidence, exact=exact, settings=LOOK, command="", environment={}, bias=[])


class Lossless(TokenSteps):
    lossless = True


class Multinomial(Lossless):
    """Right, and emits with PyTorch's own generator: its accept tests alone can be injected."""

    def emit(self, weights, draft, streams, num_accepted):
        return torch.multinomial(weights, 1)[:, 0]


class OwnNoise(Multinomial):
    """Right, and reads no stream at all, though it says that it is of the token rule."""

    def accept_uniforms(self, draft, streams):
        return torch.rand(len(draft.token_ids), dtype=torch.float64)


class OtherOrder(Lossless):
    """Right, with the emitted token drawn from the last to the first."""

    def emit(self, weights, draft, streams, num_accepted):
        reverse = inverse_cdf(weights.flip(1).contiguous(), streams.uniform(Stream.EMIT)[:, 0])
        return weights.shape[1] - 1 - reverse


class Lenience(Lossless):
    """Wrong by a factor."""

    factor = 0.9

    def accepts(self, p, q, u):
        return u * self.factor * q < p


class SlightLenience(Lenience):
    """By so little that only enumeration can see it."""

    factor = 0.998


class LenienceWithNoiseOfItsOwn(Lenience, Multinomial):
    """A bias below what the draws show, in code that enumeration cannot follow but at temperature 0."""

    rule, factor = "mine", 0.99


class FourthAccepted(Lossless):
    """The fourth drafted token and what follows is never tested."""

    def accepts(self, p, q, u):
        return super().accepts(p, q, u) | (self.offsets >= 3)

    def read(self, draft, target, streams):
        self.offsets = batched.offsets(draft)
        return draft, target, streams


class GreedyBecomesWarm(Lossless):
    """A greedy request in a batch of sampled ones is sampled at temperature 1."""

    def read(self, draft, target, streams):
        if not (target.temperature > 0).any():
            return draft, target, streams
        warm = target.temperature.where(target.temperature > 0, 1.0)
        return draft, dataclasses.replace(target, temperature=warm, log_normalizer=None), streams


class UnknownNormalizer(Lossless):
    """Rows without a normaliser are normalised as at temperature 1."""

    def read(self, draft, target, streams):
        if target.log_normalizer is None:
            target = dataclasses.replace(target, log_normalizer=target.logits.double().logsumexp(-1))
        return draft, target, streams


class LastTileLost(Lossless):
    """In a large vocabulary the last, partial tile of 1024 tokens is never drawn from."""

    def emit(self, weights, draft, streams, num_accepted):
        whole = weights.shape[1] // 1024 * 1024
        if whole:
            weights = weights.clone()
            weights[:, whole:] = 0
        return super().emit(weights, draft, streams, num_accepted)


class OutsideLargeVocabulary(Lossless):
    """In a large vocabulary one request in 50 emits an id outside of it."""

    def output(self, draft, num_accepted, emitted):
        sound = super().output(draft, num_accepted, emitted)
        token_ids = sound.token_ids.clone()
        if self.vocabulary > 1000:
            token_ids[::50, 0] = self.vocabulary
        return Verification(token_ids, sound.num_accepted)

    def read(self, draft, target, streams):
        self.vocabulary = target.logits.shape[1]
        return draft, target, streams


class RefusesRaggedDrafts(Lossless):
    """Right as far as it goes."""

    def verify(self, draft, target, streams):
        if (draft.num_draft_tokens != draft.max_draft_tokens).any():
            raise ArgumentError("ragged drafts are not supported")
        return super().verify(draft, target, streams)


class RefusesAll(Lossless):
    """Nothing can be said of it."""

    def verify(self, draft, target, streams):
        raise ArgumentError("not today")


@pytest.mark.parametrize(
    ("verifier", "verdict", "words"),
    [
        (Lossless(), LOSSLESS, "enumerated on"),
        (OtherOrder(), LOSSLESS, "enumerated on"),
        (Multinomial(), NOT_REJECTED, "Steps were enumerated on"),
        (OwnNoise(), NOT_REJECTED, "give it a rule of its own"),
        (RefusesRaggedDrafts(), NOT_REJECTED, "Refused and so not tested"),
        (RefusesAll(), NOT_REJECTED, "nothing is known of it. "),
        (LenienceWithNoiseOfItsOwn(), NOT_REJECTED, "Steps were enumerated on"),
    ],
    ids=lambda each: type(each).__name__ if isinstance(each, TokenSteps) else "",
)
def test_right_code_is_not_slandered_and_nothing_is_certified_unseen(verifier, verdict, words):
    certificate = certificate_of(verifier)
    assert certificate.verdict == verdict, certificate.words
    assert words in certificate.words


@pytest.mark.parametrize(
    ("verifier", "words"),
    [
        (Lenience(), "rejects it after"),
        (FourthAccepted(), "'long'"),
        (GreedyBecomesWarm(), "'mixed'"),
        (UnknownNormalizer(), "'long'"),
        (LastTileLost(), "'tiles of ids'"),
        (OutsideLargeVocabulary(), "'form' on the fixture 'large_1500'"),
    ],
    ids=lambda each: type(each).__name__ if isinstance(each, TokenSteps) else "",
)
def test_wrong_code_is_rejected(verifier, words):
    certificate = certificate_of(verifier, enumerate_too=False)
    assert certificate.verdict == NOT_LOSSLESS, certificate.words
    assert words in certificate.words


def test_a_bias_that_no_draws_show_is_found_by_search_and_only_beyond_its_own_error():
    """A lenience of 0.998 is a total variation of 0.0012 on the fixture where q is close to p."""
    found = search(SlightLenience(), next(each for each in small_fixtures() if each.name == "near"))
    assert found is not None
    assert found.missed < 0.5 * found.tv
    row = ExactRow(fixture="near", searched_tv=found.tv, searched_missed=found.missed)
    assert row.lossless is False
    # A search that missed as much as it found says nothing.
    assert dataclasses.replace(row, searched_missed=2 * found.tv).lossless is None
    # Nor does a grid on which thresholds are out of place, where no search could follow the code.
    assert ExactRow(fixture="near", injected_error=0.3, margin=1.0).lossless is None


def odd(token_ids, num_accepted) -> Verification:
    """A Verification as code without this suite's type checks can make it."""
    result = object.__new__(Verification)
    object.__setattr__(result, "token_ids", token_ids)
    object.__setattr__(result, "num_accepted", num_accepted)
    return result


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda tokens, counts: (tokens, counts), "returned a tuple"),
        (lambda tokens, counts: None, "returned a NoneType"),
        (lambda tokens, counts: odd(tokens.flatten(), counts), r"token_ids \[12\]"),
        (lambda tokens, counts: odd(tokens, counts[:, None]), r"num_accepted \[4, 1\]"),
        (lambda tokens, counts: odd(tokens.float(), counts), "torch.float32 token_ids"),
    ],
    ids=["tuple", "None", "flat", "column", "float"],
)
def test_what_is_no_verification_is_named(made, said):
    result = made(torch.zeros((4, 3), dtype=torch.int64), torch.zeros(4, dtype=torch.int64))
    with pytest.raises(ConfigError, match=said) as error:
        check_result(MaskedVerifier(), result, 4)
    assert "MaskedVerifier" in str(error.value)
    assert "Return Verification(" in str(error.value)


def test_fixtures_of_unlike_plans_are_all_drawn_to_their_end():
    """By the power calculation fixtures need unlike numbers of steps, and close at different batches."""
    settings = dataclasses.replace(LOOK, draws=0, detectable_tv=0.02, serial_draws=0, vocabulary=0)
    evidence = examine(MaskedVerifier(), settings, 0, CPU)
    draws = {tally.draws for tally in evidence.tallies.values()}
    assert len(draws) > 1
    assert all(row.detectable <= 0.02 for row in evidence.rows if row.detectable is not None)
