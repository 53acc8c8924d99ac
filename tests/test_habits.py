"""What code depends on beside its arguments is found and named: each habit planted once."""

import dataclasses

import pytest
import torch

from specbench.exactness.certificate.tests import HABITS
from specbench.exactness.enumeration.injection import takes_injected_uniforms
from specbench.exactness.habits import COMPANY, GENERATOR, PLACE, POSITION, SEED, STREAMS, TWICE, habits
from specbench.exactness.zoo.base import TokenSteps
from specbench.rng import Stream
from specbench.sampling import inverse_cdf
from specbench.verifiers.masked import MaskedVerifier
from tests.cases import FIXTURES

COUPLED = ["ragged", "mixed"]
pytestmark = pytest.mark.usefixtures("few_asked_twice")


def found(verifier, injectable: bool | None = None) -> dict[str, int]:
    fixtures = [FIXTURES[name] for name in COUPLED]
    takes = takes_injected_uniforms(verifier, fixtures[0]) if injectable is None else injectable
    with torch.inference_mode():
        seen = habits(verifier, fixtures, takes, seed=3)
    assert all(habit.requests > 100 for habit in seen)
    return {habit.name: habit.differing for habit in seen}


class ReadsSeed(TokenSteps):
    def accept_uniforms(self, draft, streams):
        odd = (streams.seeds % 2 == 1)[draft.request_of_row]
        return super().accept_uniforms(draft, streams).masked_fill(odd, 0.5)


class ReadsPosition(TokenSteps):
    def accept_uniforms(self, draft, streams):
        odd = (streams.positions % 2 == 1)[draft.request_of_row]
        return super().accept_uniforms(draft, streams).masked_fill(odd, 0.5)


class ForgetsPosition(TokenSteps):
    def read(self, draft, target, streams):
        return draft, target, dataclasses.replace(streams, positions=torch.zeros_like(streams.positions))


class Remembers(TokenSteps):
    calls = 0

    def emit(self, weights, draft, streams, num_accepted):
        self.calls += 1
        u = streams.uniform(Stream.EMIT)[:, 0]
        return inverse_cdf(weights, (u + 0.1 * self.calls) % 1)


class ReadsPlace(TokenSteps):
    def emit(self, weights, draft, streams, num_accepted):
        u = streams.uniform(Stream.EMIT)[:, 0]
        return inverse_cdf(weights, torch.where(torch.arange(len(u)) % 3 == 0, 1 - u, u))


class ReadsBatchSize(TokenSteps):
    def emit(self, weights, draft, streams, num_accepted):
        u = streams.uniform(Stream.EMIT)[:, 0]
        return inverse_cdf(weights, u if len(u) > 100 else 1 - u)


class OwnNoise(TokenSteps):
    def emit(self, weights, draft, streams, num_accepted):
        return torch.multinomial(weights, 1)[:, 0]


@pytest.mark.parametrize(
    ("verifier", "has"),
    [
        (ReadsSeed(), {SEED}),
        (ReadsPosition(), {POSITION}),
        (ForgetsPosition(), {STREAMS}),
        (Remembers(), {TWICE, GENERATOR, SEED, POSITION, STREAMS, PLACE, COMPANY}),
        (ReadsPlace(), {PLACE, COMPANY}),
        (ReadsBatchSize(), {COMPANY}),
    ],
    ids=lambda each: type(each).__name__ if isinstance(each, TokenSteps) else "",
)
def test_each_habit_is_found_and_no_other(verifier, has):
    seen = found(verifier)
    assert {name for name, differing in seen.items() if differing} == has


def test_noise_of_its_own_shows_under_another_state_of_the_generator():
    """The same state gives the same tokens again; another place or company draws other numbers."""
    seen = found(OwnNoise())
    assert seen[TWICE] == 0
    assert seen[GENERATOR] > 100


def test_sound_code_has_no_habits_and_code_with_seeds_of_its_own_is_asked_less():
    assert set(found(MaskedVerifier()).values()) == {0}
    assert set(found(MaskedVerifier())) == set(HABITS)
    assert set(found(MaskedVerifier(), injectable=False)) == {TWICE, PLACE, COMPANY, GENERATOR}


def test_the_generator_of_the_run_is_left_as_it_was():
    torch.manual_seed(11)
    before = torch.random.get_rng_state()
    found(OwnNoise(), injectable=True)
    assert torch.equal(torch.random.get_rng_state(), before)
