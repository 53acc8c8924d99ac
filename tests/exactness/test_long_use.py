"""A verifier object after many calls: each fault of memory planted once; sound verifiers show no difference."""

import dataclasses
import threading

import pytest
import torch

from specbench.core.errors import ArgumentError
from specbench.core.rng import Stream
from specbench.core.types import Verification
from specbench.exactness.fixtures import greedy_fixture, small_fixtures
from specbench.exactness.guard import VerifierFault
from specbench.exactness.purity import long_use as module
from specbench.exactness.purity.fresh_copies import Subject, unused_copy
from specbench.exactness.purity.long_use import LongUse
from specbench.exactness.results import LongUseRow
from specbench.exactness.zoo.steps import TokenSteps
from specbench.rules.block.masked import BlockVerifier
from specbench.rules.token.masked import MaskedVerifier
from specbench.rules.verifier import Limits
from specbench.sampling import inverse_cdf
from tests.helpers.cases import CPU, FIXTURES
from tests.helpers.made_up_verifiers import acting, changed, refusing

CALLS = 400
SOME = [FIXTURES[name] for name in ("chain", "ragged", "one_hot")]


def used(verifier, calls: int = CALLS, fixtures=SOME) -> LongUseRow:
    with torch.inference_mode():
        use = LongUse(Subject(verifier, unused_copy(verifier)), fixtures, seed=5, device=CPU)
        use.exercise(calls)
        return use.compare()


@pytest.fixture(autouse=True)
def fewer_shapes(monkeypatch):
    """Checks of types make shapes slow to prepare."""
    monkeypatch.setattr(module, "_SHAPES", 60)
    monkeypatch.setattr(module, "_RECORDED", 16)


class Counting(TokenSteps):
    """Refuses the first token of every request in some of its calls."""

    def __init__(self, first: int, last: int = 10**9):
        self.first, self.last, self.calls = first, last, 0

    def count(self, mask):
        self.calls += 1
        return super().count(mask) * (not self.first <= self.calls < self.last)


class StaleWorkspace(TokenSteps):
    """Keeps the uniforms of each shape's first call once it has met more than twenty shapes."""

    def __init__(self):
        self.kept = {}

    def accept_uniforms(self, draft, streams):
        uniforms = super().accept_uniforms(draft, streams)
        key = (len(draft.num_draft_tokens), len(uniforms))
        if len(self.kept) > 20:
            return self.kept.setdefault(key, uniforms)
        self.kept[key] = uniforms
        return uniforms


class FullCache(TokenSteps):
    """Stores 120 outcomes by seed; later requests that are not among them get another one of the same shape."""

    def __init__(self):
        self.outcomes, self.by_shape = {}, {}

    def verify(self, draft, target, streams):
        key = (tuple(streams.seeds.tolist()), tuple(draft.num_draft_tokens.tolist()), tuple(draft.token_ids.tolist()))
        shape = (len(streams.seeds), draft.max_draft_tokens)
        if key not in self.outcomes:
            if len(self.outcomes) >= 120 and shape in self.by_shape:
                return self.by_shape[shape]
            self.by_shape[shape] = self.outcomes[key] = super().verify(draft, target, streams)
        return self.outcomes[key]


class PreviousNoise(TokenSteps):
    """Draws the emitted token with the uniforms of the call before, if their shape is the same."""

    before = None

    def emit(self, weights, draft, streams, num_accepted):
        uniforms, kept = streams.uniform(Stream.EMIT), self.before
        self.before = uniforms
        if kept is not None and kept.shape == uniforms.shape:
            streams = dataclasses.replace(streams, made=torch.stack([kept] * 3))
        return super().emit(weights, draft, streams, num_accepted)


@pytest.mark.cases(1, 2)
@pytest.mark.parametrize("verifier", [MaskedVerifier(), BlockVerifier(), TokenSteps()])
def test_sound_verifiers_do_the_same_before_and_after(verifier):
    row = used(verifier)
    assert row.calls == CALLS
    assert row.requests == row.new_requests > 400
    assert row.rechecked > 100
    assert (row.unsteady, row.changed, row.unlike_fresh, row.unlike_rule, row.changed_between) == (0, 0, 0, 0, 0)
    assert row.first_changed is None


def test_a_counter_is_seen_from_the_call_on():
    row = used(Counting(first=300))
    assert row.unsteady == 0
    assert row.changed > 100
    assert row.unlike_fresh == row.unlike_rule
    assert row.unlike_fresh > row.changed
    assert 150 < row.first_changed < CALLS


def test_a_fault_that_passes_is_seen_between_the_calls():
    row = used(Counting(first=250, last=350))
    assert row.changed == row.unlike_fresh == 0
    assert row.changed_between > 0


@pytest.mark.cases(1)
@pytest.mark.parametrize("kind", [StaleWorkspace, FullCache, PreviousNoise])
def test_a_memory_by_shape_is_seen(kind):
    row = used(kind())
    assert row.unlike_rule
    assert row.unlike_rule > 10
    assert row.unlike_fresh
    assert row.unlike_fresh > 10


def test_noise_of_ones_own_is_seen_at_the_beginning():
    def noise(_, draft, streams):
        return torch.rand(len(draft.token_ids), dtype=torch.float64)

    row = used(changed(accept_uniforms=noise), calls=20)
    assert row.unsteady > 50


def test_what_cannot_be_copied_has_no_fresh_object():
    class Locked(TokenSteps):
        def __init__(self):
            self.lock = threading.Lock()

    row = used(Locked(), calls=20)
    assert row.unlike_fresh is None
    assert row.changed == 0


def test_a_rule_without_formulas_is_compared_with_itself_alone():
    row = used(changed(rule="a rule of one's own"), calls=20)
    assert row.unlike_rule is None
    assert row.changed == row.unlike_fresh == 0


def test_limits_are_respected_and_refusals_left_out():
    def refuse(draft, target, streams):
        counts = draft.num_draft_tokens
        if (counts != counts[:1]).any() or (counts == 0).any():
            raise ArgumentError("draft: ragged or empty")
        if target.logits.dtype == torch.float16:
            raise ArgumentError("target: float16")

    row = used(acting(refuse, TokenSteps, limits=Limits(ragged=False, empty=False)))
    assert 200 < row.calls < CALLS  # those of float16 are left out
    assert row.changed == 0


def test_refusals_of_its_own_sampler_are_left_out():
    class OwnDrafts(TokenSteps):
        def draft_tokens(self, rows, u):
            if (rows.temperature == 0).any():
                raise ArgumentError("draft: greedy rows")
            return inverse_cdf(rows.probs(), u), rows

    row = used(OwnDrafts(), fixtures=[*SOME, greedy_fixture()])
    assert row.requests == row.new_requests > 400
    assert row.changed == 0


def test_a_verifier_that_refuses_everything_makes_no_calls():
    row = used(refusing(TokenSteps))
    assert (row.calls, row.requests, row.changed) == (0, 0, 0)


@pytest.mark.parametrize(
    ("error", "problem"),
    [
        (RuntimeError("out of slots"), "verify raised RuntimeError: out of slots"),
        (ArgumentError("draft: no slot left"), "verify refuses arguments of a shape that it took before"),
    ],
)
def test_a_late_fault_or_refusal_names_the_number_of_calls(error, problem):
    class Breaks(Counting):
        def verify(self, draft, target, streams) -> Verification:
            if self.calls > 250:
                raise error
            return super().verify(draft, target, streams)

    with pytest.raises(VerifierFault, match=rf"after \d+ calls of one object: {problem}"):
        used(Breaks(first=10**9))


def test_the_time_ends_it():
    with torch.inference_mode():
        use = LongUse(Subject(MaskedVerifier()), [small_fixtures()[0]], 0, CPU)
        assert use.exercise(1_000_000, 0.05)
        assert not use.exercise(10)
        row = use.compare()
    assert 10 < row.calls < 100_000
    assert row.changed == 0
