"""What do a verifier's tokens depend on? They may depend on its arguments alone, and on seeds through uniforms alone.

The same requests are put before it twice, with something changed that should change nothing. Enumeration takes for
granted that nothing does, so what depends on more is named, and judged by what is drawn with real seeds, in batches.
"""

from __future__ import annotations

import time

import torch
from jaxtyping import Int64
from torch import Tensor

from specbench.errors import ArgumentError
from specbench.exactness import watch
from specbench.exactness.evidence import Habit
from specbench.exactness.fixtures import Fixture
from specbench.exactness.steps import draw
from specbench.exactness.streams import HABITS, GivenStreams, request_streams, uniforms
from specbench.rng import Streams
from specbench.rules.agreement import only
from specbench.types import Draft, LogitRows, Verification
from specbench.verifiers import Verifier

SEED, POSITION, STREAMS, TWICE, PLACE, COMPANY, GENERATOR = (
    "another seed",
    "another position",
    "the same uniforms, given",
    "called again",
    "another place in the batch",
    "other company",
    "another state of PyTorch's generator",
)
_REQUESTS, _ALONE, _SECONDS = 16_384, 24, 0.3  # requests of a fixture, those verified alone, and the time for one call

Arguments = tuple[Draft, LogitRows, Streams]


def habits(verifier: Verifier, fixtures: list[Fixture], injectable: bool, seed: int) -> list[Habit]:
    """Every habit, over all fixtures together.

    Args:
        fixtures: on the device, such as differ in draft lengths and sampling parameters within a batch.
        injectable: whether the verifier draws from the streams that it is handed; if not, its seeds are its uniforms.

    Raises:
        VerifierFault: the verifier did what no verifier may.
    """
    names = (
        (SEED, POSITION, STREAMS, TWICE, PLACE, COMPANY, GENERATOR)
        if injectable
        else (TWICE, PLACE, COMPANY, GENERATOR)
    )
    found = {name: [0, 0] for name in names}
    with torch.random.fork_rng():
        for number, fixture in enumerate(fixtures):
            try:
                for name, differing in _of(verifier, fixture, injectable, seed, number):
                    found[name][0] += len(differing)
                    found[name][1] += int(differing.sum())
            except ArgumentError:  # that it refuses the fixture is said where it is drawn on
                continue
    return [Habit(name, *counts) for name, counts in found.items() if counts[0]]


def _of(verifier: Verifier, fixture: Fixture, injectable: bool, seed: int, number: int) -> list[tuple[str, Tensor]]:
    device, width = fixture.p.device, fixture.gamma + 1
    # torch.manual_seed writes a traceback for every kind of device, which takes longer than a request does.
    seeded = torch.default_generator.manual_seed if device.type == "cpu" else torch.manual_seed
    size = _size(verifier, fixture, seed)
    streams = request_streams(seed, HABITS + number * 2**30, size, width, device)
    drawn = draw(verifier, fixture, streams)
    others = request_streams(seed, HABITS + number * 2**30 + 2**29, size, width, device)

    def call(arguments: Arguments, state: int = 1) -> Verification:
        seeded(state)
        result = watch.verify(verifier, fixture, *arguments)
        return Verification(result.token_ids.clone(), result.num_accepted.clone())

    given = uniforms(streams)

    def like(seeds: Int64[Tensor, " B"], positions: Int64[Tensor, " B"]) -> Arguments:
        return drawn.draft, drawn.target, GivenStreams.of(given, Streams(seeds, positions, width))

    usual = like(streams.seeds, streams.positions) if injectable else (drawn.draft, drawn.target, streams)
    first = call(usual)
    found = [(TWICE, _differ(call(usual), first)), (GENERATOR, _differ(call(usual, 2), first))]
    if injectable:
        found.append((STREAMS, _differ(call((drawn.draft, drawn.target, streams)), first)))
        found.append((SEED, _differ(call(like(others.seeds, streams.positions)), first)))
        found.append((POSITION, _differ(call(like(streams.seeds, others.positions)), first)))
    order = torch.randperm(size, device=device)
    moved = call(only(order, *usual))
    found.append((PLACE, _differ(moved, _chosen(first, order))))
    half = torch.arange(0, size, 2, device=device)
    found.append((COMPANY, _differ(call(only(half, *usual)), _chosen(first, half))))
    for b in torch.linspace(0, size - 1, min(_ALONE, size), device=device).long():
        alone = b[None]
        found.append((COMPANY, _differ(call(only(alone, *usual)), _chosen(first, alone))))
    return found


def _size(verifier: Verifier, fixture: Fixture, seed: int) -> int:
    """Requests that a call verifies in about _SECONDS."""
    size = 8
    while size < _REQUESTS:
        streams = request_streams(seed, HABITS - size, size, fixture.gamma + 1, fixture.p.device)
        drawn = draw(verifier, fixture, streams)
        started = time.perf_counter()
        watch.verify(verifier, fixture, drawn.draft, drawn.target, streams)
        if time.perf_counter() - started > _SECONDS / 4:
            break
        size *= 4
    return size


def _chosen(result: Verification, requests: Int64[Tensor, " m"]) -> Verification:
    return Verification(result.token_ids[requests], result.num_accepted[requests])


def _differ(one: Verification, other: Verification) -> Tensor:
    return (one.token_ids != other.token_ids).any(dim=1) | (one.num_accepted != other.num_accepted)
