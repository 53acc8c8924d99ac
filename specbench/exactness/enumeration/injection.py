"""Uniforms are handed to a verifier, and its outputs are weighted by how likely they are. No Monte Carlo."""

from __future__ import annotations

import dataclasses
import gc
import sys
from typing import Any

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from specbench.core.rng import Stream
from specbench.exactness.enumeration.laws import Ends, all_drafts, prefixes
from specbench.exactness.fixtures import Fixture
from specbench.exactness.reference import held_against
from specbench.exactness.steps import Steps, draw, verified
from specbench.exactness.streams import GivenStreams
from specbench.rules.rule import Rule
from specbench.rules.verifier import Verifier

SMALLEST, LARGEST = 2.0**-53, 1 - 2.0**-53  # of the uniforms that a stream can yield
_CHUNK = 2**16
_COUNTED = 2, 10  # requests of the two batches whose Python calls are counted


@dataclasses.dataclass(frozen=True)
class Point:
    """One request with given uniforms.

    Attributes:
        fixture: of one class.
        given: [streams, gamma + 1], its uniforms.
    """

    fixture: Fixture
    given: Float64[Tensor, "s width"]


@dataclasses.dataclass(frozen=True)
class Example:
    """A request on which code did something else than its model or its rule.

    Attributes:
        point: the request with its uniforms.
        emitted, wanted: tokens, PADDING behind them; of a malformed result PADDING alone. ``wanted`` is
            None if no model or rule foresees the tokens.
    """

    point: Point
    seed: int
    position: int
    emitted: Int64[Tensor, " width"]
    wanted: Int64[Tensor, " width"] | None


def inject(
    verifier: Verifier, fixture: Fixture, given: Float64[Tensor, "s n width"], read: set[Stream] | None = None
) -> Steps:
    """One step for each column of uniforms, with the draft drawn with them; outcomes on the CPU.

    Args:
        fixture: of one class.
        read: gets the streams that the verifier read.
    """
    parts = []
    for chunk in given.split(_CHUNK, dim=1):
        streams = GivenStreams.of(chunk.contiguous().to(fixture.p.device))
        drawn = draw(verifier, fixture, streams)
        streams.read.clear()  # by the draft
        parts.append(verified(verifier, drawn))
        if read is not None:
            read |= streams.read
    return Steps.on_cpu(parts)


def expected_of(rule: Rule, fixture: Fixture, given: Float64[Tensor, "s n width"]) -> Int64[Tensor, "n width"]:
    """The tokens that a rule emits for given uniforms, with the drafts drawn with them; ``fixture`` is of one class."""
    return draw(None, fixture, GivenStreams.of(given.to(fixture.p.device))).expected(rule).token_ids.cpu()


def takes_injected_uniforms(verifier: Verifier, fixture: Fixture) -> bool:
    """Whether the verifier draws from the streams it is handed, not from its seeds by itself."""
    read: set[Stream] = set()
    half = torch.full((len(Stream), 1, fixture.gamma + 1), 0.5, dtype=torch.float64)
    inject(verifier, _longest(fixture), half, read)
    return bool(read)


def calls_a_request(verifier: Verifier, fixture: Fixture) -> float:
    """Returns how many Python calls the verifier makes for each further request of a batch.

    Code that handles requests one by one makes some 20, an interpreted kernel some 600,000, and code that handles a
    batch at once none. It is a count and no time, so that what follows from it is the same on a busy machine.
    """
    longest, generator, counted = _longest(fixture), torch.Generator().manual_seed(0), []
    for size in _COUNTED:
        shape = (len(Stream), size, fixture.gamma + 1)
        given = torch.rand(shape, generator=generator, dtype=torch.float64).clamp(min=SMALLEST)
        inject(verifier, longest, given)  # what a first call sets up is not counted
        counted.append(_python_calls(verifier, longest, given))
    return max(0.0, (counted[1] - counted[0]) / (_COUNTED[1] - _COUNTED[0]))


def _longest(fixture: Fixture) -> Fixture:
    """The class of the longest drafts."""
    return max(fixture.classes(), key=lambda own: own.count)


def _python_calls(verifier: Verifier, fixture: Fixture, given: Float64[Tensor, "s n width"]) -> int:
    calls = 0

    def profile(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before, collecting = sys.getprofile(), gc.isenabled()
    gc.disable()  # finalisers would be counted, and come when they like
    sys.setprofile(profile)
    try:
        inject(verifier, fixture, given)
    finally:
        sys.setprofile(before)
        if collecting:
            gc.enable()
    return calls


def extreme_failures(verifier: Verifier, fixture: Fixture) -> tuple[int, list[Example]]:
    """Calls at the ends of the uniforms' range: how many, and those that gave what no rule can or the target forbids.

    Every draft, with the accept and the emit uniforms at the smallest and the largest number that a stream can yield. A
    u = 0 that accepts p = 0, or a sum that u = 1 overruns, is too rare to be met by sampling.
    """
    rule, calls, failures = held_against(verifier), 0, []
    for own in fixture.classes():
        drafts = all_drafts(own, own.count)
        upper = drafts.q.cumsum(dim=2).gather(2, drafts.tokens[:, :, None])[:, :, 0]
        drafted = upper - drafts.drafted_q / 2  # in the middle of the intervals that yield each draft
        given = torch.full((len(Stream), 4 * len(drafted), fixture.gamma + 1), 0.5, dtype=torch.float64)
        given[Stream.DRAFT, :, : own.count] = drafted.repeat(4, 1)
        ends = torch.tensor([SMALLEST, LARGEST], dtype=torch.float64)
        corners = torch.cartesian_prod(ends, ends).repeat_interleave(len(drafted), dim=0)
        given[Stream.ACCEPT], given[Stream.EMIT] = corners[:, :1], corners[:, 1:]
        steps = inject(verifier, own, given)
        forbidden = (steps.emitted & (own.p.cpu()[steps.rows, steps.tokens] == 0)).any(dim=1)
        calls += len(forbidden)
        wrong = (forbidden | steps.malformed).nonzero()[:, 0].tolist()
        wanted = None if rule is None else expected_of(rule, own, given)
        streams = steps.drawn.streams
        failures += [
            Example(
                Point(own, given[:, b]),
                int(streams.seeds[b]),
                int(streams.positions[b]),
                steps.visible[b],
                None if wanted is None else wanted[b],
            )
            for b in wrong
        ]
    return calls, failures


def ends_of(steps: Steps, weight: Float64[Tensor, " n"]) -> Ends:
    """Where weighted steps of one class end; a malformed step's mass is lost, and so counts as an error."""
    fixture, ends = steps.drawn.fixture, []
    last, prefix = steps.emitted.sum(dim=1) - 1, prefixes(steps.tokens, fixture.vocabulary)
    for i in range(fixture.count + 1):
        here = (last == i) & ~steps.malformed
        out = torch.zeros(fixture.vocabulary ** (i + 1), dtype=torch.float64)
        ends.append(out.index_add_(0, prefix[here, i + 1], weight[here]))
    return ends
