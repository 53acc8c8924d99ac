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
from specbench.exactness.settings import Settings
from specbench.exactness.trials.judge import CallsToDraw
from specbench.exactness.zoo.steps import TokenSteps
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


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    ("verifier", "verdict", "words"),
    [
        (Lossless(), LOSSLESS, "the thresholds of the code were located"),
        (RefusesRaggedDrafts(), NOT_REJECTED, "It refused these small pairs: ragged, idle, long, serial idle."),
        (RefusesAll(), NOT_REJECTED, "nothing is known of it. "),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, TokenSteps) else "",
)
def test_right_code_is_not_slandered_and_nothing_is_certified_unseen(verifier, verdict, words):
    certificate = certified(verifier)
    assert certificate.verdict == verdict, full_text(certificate)
    assert words in full_text(certificate)


@pytest.mark.cases(1, 3)
@pytest.mark.parametrize(
    ("verifier", "words"),
    [
        (GreedyBecomesWarm(), "on 'mixed'"),
        (UnknownNormalizer(), "'joint' on 'long'"),
        (TopKOfSmallVocabularies(), "on small of D"),
        (LastTileLost(), "on small of D"),
        (OutsideLargeVocabulary(), "on small of D"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, TokenSteps) else "",
)
def test_wrong_code_is_rejected(verifier, words):
    certificate = certified(verifier)
    assert certificate.verdict == NOT_LOSSLESS, full_text(certificate)
    assert words in full_text(certificate)
