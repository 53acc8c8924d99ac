"""What code depends on beside its arguments is found and named: each habit planted once."""

import itertools

import numpy as np
import pytest
import torch

from specbench.exactness.enumeration.injection import takes_injected_uniforms
from specbench.exactness.purity.hidden_inputs import habits
from specbench.exactness.results import (
    COMPANY,
    GENERATOR,
    KINDS,
    PLACE,
    POSITION,
    SEED,
    SIZE,
    STREAMS,
    TWICE,
    Habit,
    established,
)
from specbench.exactness.zoo.rng import ReseededSteps, SeedOfFirstRow
from specbench.exactness.zoo.steps import TokenSteps
from specbench.rules.matching import MatchingVerifier
from specbench.rules.token.masked import MaskedVerifier
from tests.helpers.cases import FIXTURES
from tests.helpers.made_up_verifiers import EmitsAt

COUPLED = ["ragged", "mixed"]


def seen(verifier, injectable: bool | None = None) -> list[Habit]:
    fixtures = [FIXTURES[name] for name in COUPLED]
    takes = takes_injected_uniforms(verifier, fixtures[0]) if injectable is None else injectable
    with torch.inference_mode():
        rows = habits(verifier, fixtures, takes, seed=3)
    assert all(row.requests > 100 for row in rows)
    return rows


def habits_of(verifier) -> set[str]:
    """The habits that are stated of it."""
    return {row.name for row in established(seen(verifier))}


class Reads(TokenSteps):
    """Reads seeds or positions."""

    def __init__(self, name: str):
        self.name = name

    def accept_uniforms(self, draft, streams):
        odd = (getattr(streams, self.name) % 2 == 1)[draft.request_of_row]
        return super().accept_uniforms(draft, streams).masked_fill(odd, 0.5)


READS_PLACE = EmitsAt(lambda u, _: torch.where(torch.arange(len(u)) % 3 == 0, 1 - u, u))
READS_FIRST_SEED = EmitsAt(lambda u, streams: (u + (streams.seeds[0] % 1000) / 1000) % 1)


def remembers(wrong) -> EmitsAt:
    """Emits another token at some of its calls: ``wrong`` gets their number."""
    calls = itertools.count(1)
    return EmitsAt(lambda u, _: 1 - u if wrong(next(calls)) else u)


def draws_on_its_own(share: float) -> EmitsAt:
    """With a generator of its own; at few requests, or at all."""
    generator = torch.Generator().manual_seed(5)

    def noisy(u, _):
        noise = torch.rand(len(u), generator=generator, dtype=torch.float64)
        return torch.where(torch.rand(len(u), generator=generator) < share, noise, u)

    return EmitsAt(noisy)


OWN_NOISE = EmitsAt(lambda u, _: torch.rand_like(u))


HABITS = {
    "reads seeds": (Reads("seeds"), {SEED}),
    "reads positions": (Reads("positions"), {POSITION}),
    "forgets positions": (ReseededSteps(), {STREAMS}),
    "reads the place in the batch": (READS_PLACE, {PLACE}),
    "reads the size of the batch": (EmitsAt(lambda u, _: u if len(u) > 100 else 1 - u), {SIZE}),
    "seed of the first request": (SeedOfFirstRow(), {COMPANY}),
    "uniforms of the neighbour": (EmitsAt(lambda u, _: u.roll(1)), {COMPANY}),
    "reads the first request's seed": (READS_FIRST_SEED, {SEED, COMPANY}),
    "noise of its own": (OWN_NOISE, {GENERATOR}),
}


@pytest.mark.cases(4)
@pytest.mark.parametrize(("verifier", "has"), HABITS.values(), ids=HABITS)
def test_a_habit_is_stated_where_the_evidence_excludes_the_others(verifier, has):
    assert habits_of(verifier) == has


# Every second call or third, all from some call on, calls with no pattern: none of them reads a seed or a generator.
MEMORIES = {
    "all": lambda call: call % 5,
    "even": lambda call: call % 2 == 0,
    "third": lambda call: call % 3 == 0,
    "rare": lambda call: call % 9 == 0,
    "late": lambda call: call > 30,
    "once": lambda call: call == 33,
    "without a pattern": lambda call: call * 2654435761 % 2**32 < 2**31,
}


@pytest.mark.cases(2, 4)
@pytest.mark.parametrize("name", MEMORIES)
def test_a_memory_is_told_as_one(name):
    assert habits_of(remembers(MEMORIES[name])) == {TWICE}


@pytest.mark.cases(1, 1)
@pytest.mark.parametrize("share", [1.0, 0.01])
def test_noise_of_its_own_is_told_from_that_of_the_global_generator(share):
    assert habits_of(draws_on_its_own(share)) == {TWICE}
    assert habits_of(EmitsAt(lambda u, _: torch.from_numpy(np.random.rand(len(u))))) == {TWICE}


def test_sound_code_has_no_habits_and_code_with_seeds_of_its_own_is_asked_less():
    rows = seen(MaskedVerifier())
    assert {row.name for row in rows} == set(KINDS)
    assert not any(row.differing for row in rows)
    fewer = {row.name for row in seen(MaskedVerifier(), injectable=False)}
    assert fewer == {TWICE, GENERATOR, COMPANY, PLACE, SIZE}


def test_the_generator_of_the_run_is_left_as_it_was():
    torch.manual_seed(11)
    before = torch.random.get_rng_state()
    seen(OWN_NOISE, injectable=True)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_other_gpus_of_the_machine_are_left_alone(monkeypatch):
    """PyTorch warns where there are several, and takes all of them into use; warnings are errors here."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    seen(OWN_NOISE, injectable=True)


def test_a_habit_is_of_another_rule_unless_rounding_explains_it():
    for verifier, name in (
        (Reads("seeds"), SEED),
        (READS_PLACE, PLACE),
        (READS_FIRST_SEED, COMPANY),
        (OWN_NOISE, GENERATOR),
    ):
        row = {row.name: row for row in seen(verifier)}[name]
        assert 0 < row.structural == row.differing
    assert not any(row.structural for row in seen(MaskedVerifier()))
    assert {row.structural for row in seen(MatchingVerifier(coupled=False))} == {None}


def test_rounding_is_no_habit_of_another_rule():
    """What a batch of odd size draws is off by 2e-6: some of many requests come out otherwise."""
    assert not any(row.structural for row in seen(EmitsAt(lambda u, _: u * (1 - 2e-6 * (len(u) % 2)))))
