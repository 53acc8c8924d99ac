"""A failing example as data: one request, or a batch of copies of it, which can be run again."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
from jaxtyping import Int64
from torch import Tensor

from specbench.core.rng import Stream, Streams
from specbench.exactness.enumeration.injection import Point
from specbench.exactness.steps import Steps, make_draft, verified
from specbench.exactness.streams import GivenStreams, request_streams
from specbench.exactness.watch import draft_sampler
from specbench.verifiers import Verifier

MOST_COPIES = 4096  # in the largest batch that is tried


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
    """

    seed: int
    position: int
    given: bool
    batch: int
    place: int
    emitted: tuple[int, ...]
    wanted: tuple[int, ...]


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
    drawn = make_draft(of_length, streams.uniform(Stream.DRAFT), counts, draft_sampler(verifier, point.fixture))
    return verified(verifier, of_length, drawn, streams).cpu()


def smallest_batch(
    verifier: Verifier, point: Point, wanted: Int64[Tensor, " width"], request: tuple[int, int] | None = None
) -> ShownRequest | None:
    """Returns the smallest batch of copies in which a request fails: itself alone, if it does so alone.

    Args:
        wanted: its tokens if it did not fail.
        request: seed and position whose uniforms the example has; None: the uniforms are given.

    Returns:
        None if no batch of copies fails: the other requests of the batch, earlier calls or noise decide.
    """
    if request is None:
        like = request_streams(0, 64, 1, point.given.shape[1], torch.device("cpu"))
        seed, position = int(like.seeds[0]), int(like.positions[0])
    else:
        seed, position = request

    def wrong(batch: int) -> tuple[int, tuple[int, ...]] | None:
        tokens = run_copies(verifier, point, seed, position, request is None, batch).visible
        places = (tokens != wanted).any(dim=1).nonzero()[:, 0].tolist()
        return (places[0], tuple(tokens[places[0]].tolist())) if places else None

    right, batch = 0, 1
    found = wrong(batch)
    while found is None and batch < MOST_COPIES:
        right, batch = batch, 2 * batch
        found = wrong(batch)
    while found is not None and batch - right > 1:
        middle = (right + batch) // 2
        smaller = wrong(middle)
        if smaller is None:
            right = middle
        else:
            batch, found = middle, smaller
    if found is None:
        return None
    return ShownRequest(seed, position, request is None, batch, *found, tuple(wanted.tolist()))
