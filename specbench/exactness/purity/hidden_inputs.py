"""What do a verifier's tokens depend on? They may depend on its arguments alone, and on seeds through uniforms alone.

The same requests are verified under several conditions, each of which changes one thing that should change nothing. All
calls are made in random order, and each condition more than once, so that a memory or noise of the verifier's own shows
as a difference between calls of one condition. Such a difference would also look like every other habit, so what each
habit needs to have excluded is listed in KINDS (results.py). Enumeration takes for granted that there are no habits;
code with a habit is judged by what is drawn with real seeds, in batches.
"""

from __future__ import annotations

import contextlib
import random
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from specbench.core.errors import ArgumentError
from specbench.core.machine.devices import gpus_in_use
from specbench.core.rng import Streams
from specbench.core.types import Verification
from specbench.exactness import guard
from specbench.exactness.fixtures import Fixture
from specbench.exactness.reference import VerifyCall, held_against
from specbench.exactness.results import COMPANY, GENERATOR, PLACE, POSITION, SEED, SIZE, STREAMS, TWICE, Habit
from specbench.exactness.steps import draw
from specbench.exactness.streams import HABITS, GivenStreams, request_streams, uniforms
from specbench.rules.verifier import Verifier

_REQUESTS, _ALONE = 2048, 12  # requests of a fixture at most, and those of them that are verified alone


def habits(
    verifier: Verifier, fixtures: list[Fixture], injectable: bool, seed: int, requests: int = _REQUESTS
) -> list[Habit]:
    """Every habit, over all fixtures together.

    Args:
        fixtures: on the device, such as differ in draft lengths and sampling parameters within a batch.
        injectable: whether the verifier draws from the streams that it is handed; if not, its seeds are its uniforms.
        requests: of each fixture at most, for slow code.

    Raises:
        VerifierFault: the verifier did what no verifier may.
    """
    names = (TWICE, GENERATOR, *((STREAMS, SEED, POSITION) if injectable else ()), COMPANY, PLACE, SIZE)
    totals = {name: [0, 0, 0] for name in names}
    with torch.random.fork_rng(gpus_in_use()):
        for number, fixture in enumerate(fixtures):
            with contextlib.suppress(ArgumentError):  # that it refuses the fixture is said where it is drawn on
                conditions = _conditions(verifier, fixture, injectable, seed, number, min(requests, _REQUESTS))
                for name, counts in _compared(verifier, fixture, conditions, random.Random(f"{seed} {number}")):
                    totals[name] = [sum(pair) for pair in zip(totals[name], counts, strict=True)]
    held = held_against(verifier) is not None
    return [
        Habit(name, requests, differing, structural if held else None)
        for name, (requests, differing, structural) in totals.items()
        if requests
    ]


@dataclass(frozen=True)
class _Condition:
    """A call that should give some requests the tokens that they have in the usual batch.

    Attributes:
        name: the habit that a difference shows; empty for the usual batch.
        call: with some or all of the requests.
        requests: [m], the requests of the usual batch that are compared.
        places: [m], where each of them stands in the call.
        state: seed of PyTorch's generator before the call.
    """

    name: str
    call: VerifyCall
    requests: Int64[Tensor, " m"]
    places: Int64[Tensor, " m"]
    state: int = 1


def _compared(
    verifier: Verifier, fixture: Fixture, conditions: list[_Condition], chance: random.Random
) -> list[tuple[str, tuple[int, int, int]]]:
    """Requests of each comparison by habit: all, those that differ, and those of which one is not the rule's."""
    # torch.manual_seed writes a traceback for every kind of device, which takes longer than a request does.
    seeded = torch.default_generator.manual_seed if fixture.p.device.type == "cpu" else torch.manual_seed
    # A memory that tells even calls from odd ones, or wakes at some call, meets each condition at unrelated times.
    order = [0, *range(len(conditions)), *range(len(conditions))]
    chance.shuffle(order)
    rule = held_against(verifier)

    def wrong(call: VerifyCall, results: Verification) -> Bool[Tensor, " B"]:
        """Which results are not the rule's, beyond rounding."""
        marks = torch.zeros_like(call.counts, dtype=torch.bool)
        if rule is not None:
            marks[call.beyond_rounding(rule, results, torch.arange(len(marks), device=marks.device))] = True
        return marks

    def counts(index: int, places: Tensor, changed: Verification, other: int, requests: Tensor) -> tuple[int, int, int]:
        """Of a comparison of results with the first ones of a condition."""
        before = first[other]
        different = structural = changed.select(places).differs(before.select(requests))
        if bool(different.any()):
            wrong_now, wrong_before = wrong(conditions[index].call, changed), wrong(conditions[other].call, before)
            structural = different & (wrong_now[places] | wrong_before[requests])
        return len(different), int(different.sum()), int(structural.sum())

    first: dict[int, Verification] = {}
    rows = []
    for index in order:
        seeded(conditions[index].state)
        results = guard.verify(verifier, conditions[index].call)
        if index in first:
            indices = torch.arange(len(results.num_accepted), device=results.num_accepted.device)
            rows.append((TWICE, counts(index, indices, results, index, indices)))
        else:
            first[index] = results
    for index, condition in enumerate(conditions[1:], start=1):
        rows.append((condition.name, counts(index, condition.places, first[index], 0, condition.requests)))
    return rows


def _conditions(
    verifier: Verifier, fixture: Fixture, injectable: bool, seed: int, number: int, size: int
) -> list[_Condition]:
    """The usual batch, and then what is changed of it."""
    device, width = fixture.p.device, fixture.gamma + 1
    # The second half of these requests takes the places of others, one on: every 64th seed is an end of its range.
    streams = request_streams(seed, HABITS + number * 2**30, 2 * size, width, device)
    drawn = draw(verifier, fixture, streams)
    if injectable:
        drawn = replace(drawn, streams=GivenStreams.of(uniforms(streams), streams))
    usual_requests = torch.arange(size, device=device)
    second = size + usual_requests.roll(1)

    usual = drawn.only(usual_requests)
    conditions = [
        _Condition("", usual, usual_requests, usual_requests),
        _Condition(GENERATOR, usual, usual_requests, usual_requests, state=2),
    ]
    if (made := usual.streams.made) is not None:
        own = streams.select(usual_requests)
        seeds, positions = streams.seeds[second], streams.positions[second]
        for name, other in (
            (STREAMS, own),
            (SEED, GivenStreams.of(made, Streams(seeds, own.positions, width))),
            (POSITION, GivenStreams.of(made, Streams(own.seeds, positions, width))),
        ):
            conditions.append(_Condition(name, replace(usual, streams=other), usual_requests, usual_requests))
    for kept in (usual_requests[::2], usual_requests[1::2]):  # at their places, in a batch of the same size
        others = second.clone()
        others[kept] = kept
        conditions.append(_Condition(COMPANY, drawn.only(others), kept, kept))
    order = torch.randperm(size, generator=torch.Generator().manual_seed(number)).to(device)
    conditions.append(_Condition(PLACE, drawn.only(order), order, usual_requests))
    half = usual_requests[: max(1, size // 2)]
    conditions.append(_Condition(SIZE, drawn.only(half), half, half))
    for request in torch.linspace(0, size - 1, min(_ALONE, size), device=device).long()[:, None]:
        conditions.append(_Condition(SIZE, drawn.only(request), request, usual_requests[:1]))
    return conditions
