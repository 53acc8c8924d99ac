"""What a newcomer may hand to the laboratory: right code that must not be slandered, wrong code that must not pass."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from specbench.core.errors import ArgumentError
from specbench.core.types import Verification
from specbench.exactness import suite
from specbench.exactness.certificate import LOSSLESS, NOT_LOSSLESS, NOT_REJECTED, Certificate
from specbench.exactness.inputs import STRATA
from specbench.exactness.settings import SUITES, Settings
from specbench.exactness.trials.judge import CallsToDraw
from specbench.exactness.zoo.steps import TokenSteps
from specbench.rules import batched
from tests.exactness.test_location import Backwards
from tests.helpers.cases import examined
from tests.helpers.made_up_evidence import certificate_of

# A sound verifier is rejected with probability 1e-7 a test of this file; seeds are fixed.
LOOK = Settings(
    draws=30_000, false_alarm=1e-7, seconds=0, locating_seconds=0, serial_draws=60_000, serial_seconds=0, calls=300,
    input_seconds=0, use_calls=0,
)  # fmt: skip
pytestmark = pytest.mark.usefixtures("unchecked", "little_effort")
FEW = ("chain", "idle", "long", "mixed", "ragged")


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five small fixtures; what they and the small strata of D show is enough here."""
    kept = tuple(fixture for fixture in suite.small_fixtures() if fixture.name in FEW)
    monkeypatch.setattr(suite, "small_fixtures", lambda: kept)
    strata = tuple(stratum for stratum in STRATA if not stratum.large and not stratum.recorded)
    monkeypatch.setattr(
        suite, "CallsToDraw", lambda *arguments: dataclasses.replace(CallsToDraw(*arguments), strata=strata)
    )


def certified(verifier, settings: Settings = LOOK) -> Certificate:
    evidence = examined(verifier, settings, seed=5, inputs_seed=5)
    return certificate_of(evidence, rule=verifier.rule, settings=settings)


class Lossless(TokenSteps):
    lossless = True


class Multinomial(Lossless):
    """Right, and emits with PyTorch's own generator: its accept tests alone can be injected."""

    rule = "mine"

    def emit(self, weights, draft, streams, num_accepted):
        return torch.multinomial(weights, 1)[:, 0]


class OwnNoise(Multinomial):
    """Right, and reads no stream at all, though it says that it is of the token rule."""

    rule = "token"

    def accept_uniforms(self, draft, streams):
        return torch.rand(len(draft.token_ids), dtype=torch.float64)


class OtherOrderOfTheRule(Backwards):
    """Right, and it names a rule whose tokens are others."""

    lossless = True


class OtherOrder(OtherOrderOfTheRule):
    """The same, of a rule of its own."""

    rule = "mine"


class Lenience(Lossless):
    """Wrong by a factor."""

    factor = 0.9

    def accepts(self, p, q, u):
        return u * self.factor * q < p


class SlightLenience(Lenience):
    """By so little that 30,000 steps could not show it."""

    factor = 0.995


class AcceptedFrom(Lossless):
    """Tests no drafted token from a place in its draft on, which stand then."""

    def __init__(self, place):
        self.place = place

    def accepts(self, p, q, u):
        return super().accepts(p, q, u) | (self.offsets >= self.place)

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


class TopKOfSmallVocabularies(Lossless):
    """In a large vocabulary what top-k removed is let in again."""

    def read(self, draft, target, streams):
        if target.logits.shape[1] > 1000:
            target = dataclasses.replace(target, cutoff=torch.full_like(target.cutoff, -torch.inf), log_normalizer=None)
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


class RareSeeds(Lossless):
    """Wrong for one request seed in 50: there every drafted token stands."""

    def accept_uniforms(self, draft, streams):
        rare = (streams.seeds // 3 % 50 == 7)[draft.request_of_row]
        return super().accept_uniforms(draft, streams).masked_fill(rare, 0.0)


class BeyondThe300th(Lossless):
    """Requests from the 300th place of a batch on accept everything."""

    def accepts(self, p, q, u):
        return super().accepts(p, q, u) | (self.place >= 300)

    def read(self, draft, target, streams):
        self.place = draft.request_of_row
        return draft, target, streams


class LowBitsOfTheSeed(Lossless):
    """Each request alone is right; two whose seeds differ above 32 bits draw the same numbers."""

    def read(self, draft, target, streams):
        return draft, target, dataclasses.replace(streams, seeds=streams.seeds & 0xFFFFFFFF)


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


def full_text(certificate: Certificate) -> str:
    return f"{certificate.headline} | {' '.join(certificate.words)}"


@pytest.mark.cases(1, 4)
@pytest.mark.parametrize(
    ("verifier", "verdict", "words"),
    [
        (Lossless(), LOSSLESS, "the thresholds of the code were located"),
        (OtherOrder(), NOT_REJECTED, "There is no rule to compare their tokens with"),
        (OtherOrderOfTheRule(), NOT_REJECTED, "uses its uniforms in another order"),
        (Multinomial(), NOT_REJECTED, "draws from PyTorch's global generator"),
        (OwnNoise(), NOT_REJECTED, "noise of its own explains that"),
        (RefusesRaggedDrafts(), NOT_REJECTED, "It refused these small pairs: ragged, idle, long, serial idle."),
        (RefusesAll(), NOT_REJECTED, "nothing is known of it. "),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, TokenSteps) else "",
)
def test_right_code_is_not_slandered_and_nothing_is_certified_unseen(verifier, verdict, words):
    certificate = certified(verifier)
    assert certificate.verdict == verdict, full_text(certificate)
    assert words in full_text(certificate)


@pytest.mark.cases(1, 5)
@pytest.mark.parametrize(
    ("verifier", "words"),
    [
        (Lenience(), "TV 0."),
        (SlightLenience(), "the thresholds of the code imply"),
        (AcceptedFrom(6), "requests on large batches of D get a result that no lossless verifier gives"),
        (GreedyBecomesWarm(), "on 'mixed'"),
        (UnknownNormalizer(), "'joint' on 'long'"),
        (TopKOfSmallVocabularies(), "on small of D"),
        (LastTileLost(), "on small of D"),
        (OutsideLargeVocabulary(), "on small of D"),
        (RareSeeds(), "reads seeds beside the uniforms"),
        (LowBitsOfTheSeed(), "'twins'"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, TokenSteps) else "",
)
def test_wrong_code_is_rejected(verifier, words):
    certificate = certified(verifier)
    assert certificate.verdict == NOT_LOSSLESS, full_text(certificate)
    assert words in full_text(certificate)


def test_what_few_requests_show_is_never_called_lossless():
    """Two requests in five of one stratum: perhaps too few to be rejected, and far too many to be certified."""
    certificate = certified(BeyondThe300th())
    assert certificate.verdict != LOSSLESS, full_text(certificate)
    assert "batch" in full_text(certificate)


@pytest.mark.thorough
def test_a_bias_on_rare_seeds_stays_in_the_bound():
    """One seed in 50, of which a part comes out otherwise: no bound may be below what is known to differ."""
    certificate = certified(RareSeeds(), dataclasses.replace(LOOK, stop_when_caught=False))
    chain = next(row for row in certificate.bounds if row["fixture"] == "chain")
    assert chain["tv"] > chain["differing"] / chain["draws"] > 0.005
    assert "seed" in full_text(certificate)


def test_quick_and_deep_suites_differ_in_how_hard_they_look():
    assert SUITES["quick"].draws < SUITES["default"].draws < SUITES["deep"].draws
    assert SUITES["quick"].calls < SUITES["default"].calls < SUITES["deep"].calls
