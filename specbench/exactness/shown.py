"""A failing example as data: one request, or a batch of copies of it, which can be run again with a new object."""

from __future__ import annotations

import copy
import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Int64
from torch import Tensor

from specbench.core.rng import Stream, Streams
from specbench.exactness.enumeration.injection import Point
from specbench.exactness.steps import Steps, make_draft, verified
from specbench.exactness.streams import GivenStreams, request_streams
from specbench.exactness.watch import draft_sampler
from specbench.rules.verifier import Verifier

MOST_COPIES = 4096  # in the largest batch that is tried
MOST_CALLS, _SECONDS = 4096, 20.0  # of one object with the same request, and the time for them


@dataclass(frozen=True)
class ShownRequest:
    """A request that fails, and the batch of its copies in which it does.

    Attributes:
        seed, position: of each copy.
        given: whether the verifier gets the uniforms of the example in place of those of the seed and position.
        batch: copies in the batch; 1 if the request fails alone.
        place: index of the copy that fails, from 0.
        emitted: tokens of that copy, PADDING behind them; PADDING alone for a malformed result.
        wanted: tokens of the rule or of the model, likewise.
        calls: of a new object with this batch, of which the last one fails and no earlier one; 1 if it has no memory.
    """

    seed: int
    position: int
    given: bool
    batch: int
    place: int
    emitted: tuple[int, ...]
    wanted: tuple[int, ...]
    calls: int = 1


def new_object(verifier: Verifier, unused: Verifier | None) -> Verifier:
    """A copy of an object that was never called, so that an example does not owe anything to earlier calls.

    Args:
        verifier: what stands for it if there is no such object.
        unused: the object; None if there is none.
    """
    return verifier if unused is None else copy.deepcopy(unused)


def first_wrong_call(
    verifier: Verifier, unused: Verifier | None, run: Callable[[Verifier], Tensor], wanted: Tensor
) -> tuple[int, Tensor] | None:
    """Returns the first call of a new object that fails, of calls that are all the same, with its tokens.

    Args:
        verifier, unused: as in new_object.
        run: makes the call and returns the tokens.
        wanted: tokens of a call that does not fail.

    Returns:
        None if no call fails, or another one fails with a second object: noise decides, and no history.
    """
    if unused is None:
        return None

    def first(most: int) -> tuple[int, Tensor] | None:
        used, started = new_object(verifier, unused), time.perf_counter()
        for number in range(1, most + 1):
            tokens = run(used)
            if not torch.equal(tokens, wanted):
                return number, tokens
            if time.perf_counter() - started > _SECONDS:
                break
        return None

    call = first(MOST_CALLS)
    again = None if call is None else first(call[0])
    same = call is not None and again is not None and call[0] == again[0] and torch.equal(call[1], again[1])
    return call if same else None


def run_copies(verifier: Verifier, point: Point, seed: int, position: int, given: bool, batch: int) -> Steps:
    """Verifies a batch of copies of a request.

    Args:
        point: the request; its fixture is of one variant.
        seed, position, given, batch: as in ShownRequest.
    """
    device, width = point.fixture.p.device, point.given.shape[1]
    of_length = dataclasses.replace(point.fixture, counts=(point.count,))
    seeds, positions = (torch.full((batch,), value, device=device) for value in (seed, position))
    streams = Streams(seeds, positions, width)
    if given:
        streams = GivenStreams.of(point.given[:, None].repeat(1, batch, 1).to(device), streams)
    counts = torch.full((batch,), point.count, device=device)
    drawn = make_draft(of_length, streams.uniform(Stream.DRAFT), counts, draft_sampler(verifier, point.fixture.name))
    return verified(verifier, of_length, drawn, streams).cpu()


def smallest_batch(
    verifier: Verifier,
    point: Point,
    wanted: Int64[Tensor, " width"],
    request: tuple[int, int] | None = None,
    unused: Verifier | None = None,
) -> ShownRequest | None:
    """Returns the smallest batch of copies in which a request fails: itself alone, if it does so alone.

    If a new object fails in no batch, the request alone is put before one again and again.

    Args:
        verifier, unused: as in new_object.
        wanted: its tokens if it did not fail.
        request: seed and position whose uniforms the example has; None: the uniforms are given.

    Returns:
        None if nothing of that fails: the other requests of the batch, other earlier calls or noise decide.
    """
    if request is None:
        like = request_streams(0, 64, 1, point.given.shape[1], torch.device("cpu"))
        seed, position = int(like.seeds[0]), int(like.positions[0])
    else:
        seed, position = request
    arguments = (point, seed, position, request is None)

    def wrong(batch: int) -> tuple[int, tuple[int, ...]] | None:
        tokens = run_copies(new_object(verifier, unused), *arguments, batch).visible
        places = (tokens != wanted).any(dim=1).nonzero()[:, 0].tolist()
        return (places[0], tuple(tokens[places[0]].tolist())) if places else None

    right, batch, calls = 0, 1, 1
    outcome = wrong(batch)
    while outcome is None and batch < MOST_COPIES:
        right, batch = batch, 2 * batch
        outcome = wrong(batch)
    while outcome is not None and batch - right > 1:
        middle = (right + batch) // 2
        smaller = wrong(middle)
        if smaller is None:
            right = middle
        else:
            batch, outcome = middle, smaller
    if outcome is None:
        wrong_call = first_wrong_call(verifier, unused, lambda used: run_copies(used, *arguments, 1).visible[0], wanted)
        if wrong_call is None:
            return None
        calls, tokens = wrong_call
        batch, outcome = 1, (0, tuple(tokens.tolist()))
    return ShownRequest(seed, position, request is None, batch, *outcome, tuple(wanted.tolist()), calls)
