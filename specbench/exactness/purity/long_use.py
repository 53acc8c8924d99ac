"""Long use: one verifier object takes many calls of mixed shapes, and the same requests before and after them.

A verifier may have a memory: a counter, a workspace for each shape, a cache that fills. Suites that make a few calls
do not meet what such a memory does later. Here requests are recorded at the beginning, the object is used, and the
requests are made again: with the object, with a copy that was never used, and by the rule.
"""

import contextlib
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from specbench.core.errors import ArgumentError
from specbench.core.rng import Streams
from specbench.core.types import Verification
from specbench.exactness import guard
from specbench.exactness.fixtures import Fixture, make_fixture
from specbench.exactness.purity.fresh_copies import Subject
from specbench.exactness.reference import held_against
from specbench.exactness.results import LongUseRow
from specbench.exactness.settings import deadline_of
from specbench.exactness.steps import Drawn, draw
from specbench.exactness.streams import LONG_USE, request_streams, uniforms
from specbench.rules.verifier import Limits, Verifier, capabilities
from specbench.sampling import SamplingParams

_SHAPES, _RECORDED = 240, 48  # prepared batches, and those of them that are made again, alone and in between
_EARLY = 32  # batches that may come from the first call on; the others join one after the other
_EVERY = 20  # calls for each recorded batch
_REQUESTS = 128  # of each small fixture
_MOST_GAMMA, _MOST_REQUESTS, _MOST_TOKENS = 8, 16, 64  # draft length, requests of a batch, vocabulary
_READY = 2**14  # requests whose uniforms are computed beforehand
_USUAL_SEEDS = 100_001  # seeds and positions as users write them are smaller
_PARAMS = (
    SamplingParams(),
    SamplingParams(temperature=0.7),
    SamplingParams(temperature=1.3, top_k=5),
    SamplingParams(temperature=0.9, top_p=0.9),
    SamplingParams(temperature=0.0),
    SamplingParams(min_p=0.05),
)
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@dataclass
class _UsedBatch:
    """A batch.

    Attributes:
        before: its outcome at the beginning; None if it is not recorded.
        taken: whether the verifier takes it; None if it was not put before it.
    """

    drawn: Drawn
    before: Verification | None = None
    taken: bool | None = None

    def __len__(self) -> int:
        return len(self.drawn.counts)


class LongUse:
    """One verifier object in use. Requests of the fixtures and of batches in mixed shapes are recorded when it is made.

    Calls from elsewhere before ``compare`` count as use too, though not as calls.

    Args:
        fixtures: small ones, on the device; those that the verifier refuses are left out.

    Raises:
        VerifierFault: the verifier did what no verifier may.
    """

    def __init__(self, subject: Subject, fixtures: Sequence[Fixture], seed: int, device: torch.device):
        self.subject, self.verifier, self.seed, self.device = subject, subject.verifier, seed, device
        self.calls = self.rechecked = self.changed_between = self.unsteady = 0
        self.seconds, self.first_changed = 0.0, None
        self._random = random.Random(seed)
        self._next_request = LONG_USE + _READY
        self._others = _ready_streams(seed, device)
        self._recorded = [batch for fixture in fixtures if (batch := self._batch(fixture, _REQUESTS, recorded=True))]
        self._shapes = self._prepared()

    def exercise(self, calls: int, seconds: float | int = 0) -> bool:
        """Makes calls in mixed shapes in a random order; some shapes come often, some late.

        Returns:
            Whether the time was up first.

        Args:
            calls: the most that are made.
            seconds: after which no further call is made; 0 is no limit.

        Raises:
            VerifierFault: the verifier did what no verifier may, or refuses a batch that it took before.
        """
        started, deadline, late = time.perf_counter(), deadline_of(seconds), False
        again = [batch for batch in self._shapes if batch.before is not None]
        for number in range(calls if self._shapes else 0):
            if late := time.perf_counter() > deadline:
                break
            if number % _EVERY == _EVERY - 1:
                self._recheck(self._random.choice(again))
            else:
                joined = min(len(self._shapes), _EARLY + number * len(self._shapes) // calls)
                if not self._taken(self._shapes[int(joined * self._random.random() ** 2)]):
                    continue
            self.calls += 1
        self.seconds += time.perf_counter() - started
        return late

    def compare(self) -> LongUseRow:
        """Verifies what was recorded again. Raises VerifierFault: the verifier did what no verifier may."""
        recorded = [*self._recorded, *(batch for batch in self._shapes if batch.before is not None)]
        again = (self._batch(batch.drawn.fixture, len(batch), recorded=False) for batch in recorded)
        unmet = [batch for batch in again if batch]
        batches = [*recorded, *unmet]
        # Backwards, or what depends on the call before would be as at the beginning and as in the copy.
        after = [self._verify(batch.drawn) for batch in batches[::-1]][::-1]
        return LongUseRow(
            calls=self.calls,
            seconds=self.seconds,
            requests=sum(map(len, recorded)),
            new_requests=sum(map(len, unmet)),
            unsteady=self.unsteady,
            changed=sum(_differing(batch.before, now) for batch, now in zip(recorded, after, strict=False)),
            unlike_fresh=self._unlike_fresh(batches, after),
            unlike_rule=self._unlike_rule(batches, after),
            rechecked=self.rechecked,
            changed_between=self.changed_between,
            first_changed=self.first_changed,
        )

    def _prepared(self) -> list[_UsedBatch]:
        """Batches of mixed shapes, of which the first are recorded; those that the verifier refuses are left out."""
        limits, batches = capabilities(self.verifier).limits, []
        generator = torch.Generator().manual_seed(self.seed)
        for number in range(_SHAPES):
            fixture = _mixed_shape(self._random, generator, limits).to(self.device)
            size = self._random.randint(1, _MOST_REQUESTS)
            if batch := self._batch(fixture, size, recorded=number < _RECORDED):
                batches.append(batch)
        return batches if batches and batches[0].before is not None else []  # it refuses all of this kind

    def _batch(self, fixture: Fixture, size: int, recorded: bool) -> _UsedBatch | None:
        """A batch, which is verified twice if it is recorded; None if the verifier refuses it."""
        self._next_request += size
        streams = request_streams(self.seed, self._next_request, size, fixture.gamma + 1, self.device)
        with contextlib.suppress(ArgumentError):
            drawn = draw(self.verifier, fixture, streams)
            if not recorded:
                return _UsedBatch(drawn)
            before, again = (_verified(self.verifier, drawn) for _ in range(2))
            self.unsteady += _differing(before, again)
            return _UsedBatch(drawn, before, taken=True)
        return None

    def _taken(self, batch: _UsedBatch) -> bool:
        """Verifies a batch of mixed shapes with fresh streams; False if the verifier refuses it."""
        if batch.taken is not False:
            streams = self._fresh_streams(len(batch), batch.drawn.streams.width)
            with contextlib.suppress(ArgumentError):
                self._verify(batch.drawn, streams, met=batch.taken is True)
                batch.taken = True
                return True
        batch.taken = False
        return False

    def _fresh_streams(self, size: int, width: int) -> Streams:
        """Streams of ``size`` requests, their uniforms computed beforehand, which takes longer than small steps do."""
        first = self._random.randrange(_READY - size)
        chosen, made = slice(first, first + size), self._others.made
        assert made is not None
        return Streams(
            self._others.seeds[chosen], self._others.positions[chosen], width, made[:, chosen, :width].contiguous()
        )

    def _recheck(self, batch: _UsedBatch) -> None:
        changed = _differing(batch.before, self._verify(batch.drawn))
        self.rechecked += len(batch)
        self.changed_between += changed
        if changed and self.first_changed is None:
            self.first_changed = self.calls

    def _verify(self, drawn: Drawn, streams: Streams | None = None, met: bool = True) -> Verification:
        """The object's outcome; what goes wrong says after how many calls it does.

        Args:
            met: whether the object took such a batch before, so that a refusal is a fault.
        """
        try:
            return _verified(self.verifier, drawn, streams)
        except guard.VerifierFault as fault:
            raise guard.VerifierFault(fault.fixture, self._after(fault.problem), fault.request) from fault
        except ArgumentError as error:
            if not met:
                raise
            problem = self._after(f"verify refuses arguments of a shape that it took before ({error}).")
            raise guard.VerifierFault(drawn.fixture.name, problem) from error

    def _after(self, problem: str) -> str:
        return f"after {self.calls:,} calls of one object: {problem}"

    def _unlike_rule(self, batches: list[_UsedBatch], after: list[Verification]) -> int | None:
        """Requests whose tokens are not the rule's, beyond rounding."""
        rule, unlike = held_against(self.verifier), 0
        if rule is None:
            return None
        for batch, now in zip(batches, after, strict=True):
            wrong = now.differs(batch.drawn.expected(rule)).nonzero()[:, 0]
            unlike += len(batch.drawn.beyond_rounding(rule, now, wrong))
        return unlike

    def _unlike_fresh(self, batches: list[_UsedBatch], after: list[Verification]) -> int | None:
        if self.subject.unused is None:
            return None
        fresh = self.subject.new_object()
        try:
            return sum(
                _differing(_verified(fresh, batch.drawn), now) for batch, now in zip(batches, after, strict=True)
            )
        except (ArgumentError, guard.VerifierFault):  # the object took what its copy does not
            return None


def _verified(verifier: Verifier, drawn: Drawn, streams: Streams | None = None) -> Verification:
    """An outcome that later calls cannot overwrite; with the requests' own streams if none are given."""
    result = guard.verify(verifier, drawn if streams is None else replace(drawn, streams=streams))
    return Verification(result.token_ids.clone(), result.num_accepted.clone())


def _differing(one: Verification | None, other: Verification) -> int:
    """Requests that differ; 0 where there is nothing to compare with."""
    return 0 if one is None else int(other.differs(one).sum())


def _ready_streams(seed: int, device: torch.device) -> Streams:
    """Streams of _READY requests with their uniforms: half of the seeds and positions as users write them."""
    generator = torch.Generator().manual_seed(seed)
    streams = request_streams(seed, LONG_USE, _READY, _MOST_GAMMA + 1, device)
    usual = torch.randint(_USUAL_SEEDS, (2, _READY), generator=generator).to(device)
    small = torch.rand((2, _READY), generator=generator).to(device) < 0.5
    seeds, positions = torch.where(small, usual, torch.stack([streams.seeds, streams.positions]))
    return Streams(seeds, positions, streams.width, uniforms(Streams(seeds, positions, streams.width)))


def _mixed_shape(chance: random.Random, generator: torch.Generator, limits: Limits) -> Fixture:
    """A pair of models in one of many shapes, on the CPU.

    Args:
        chance: chooses the shape.
        generator: of the logits.
        limits: of the verifier; what they rule out is not made.
    """
    vocabulary, gamma = chance.randint(2, _MOST_TOKENS), chance.randint(0 if limits.empty else 1, _MOST_GAMMA)
    counts = (gamma,)
    if limits.ragged and chance.random() < 0.5:
        counts = tuple(chance.randint(0 if limits.empty else 1, gamma) for _ in range(3)) if gamma else counts
    states = (1, *(min(vocabulary, 3),) * gamma)
    p = 2.0 * torch.randn(sum(states), vocabulary, generator=generator)
    q = p[: sum(states[:-1])]
    q = q + chance.choice((0.1, 0.5, 1.5)) * torch.randn(q.shape, generator=generator)
    dtype = chance.choice(_DTYPES)
    params = tuple(chance.choice(_PARAMS) for _ in range(chance.choice((1, 1, 2))))
    return make_fixture(
        "long use",
        "mixed shapes",
        p.to(dtype),
        q.to(dtype),
        gamma,
        states=states,
        counts=counts,
        params=params,
        draft_params=tuple(SamplingParams(temperature=chance.choice((0.8, 1.0))) for _ in params),
        deterministic=gamma > 0 and chance.random() < 0.3,
    )
