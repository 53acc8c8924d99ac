"""A failing example as data: one request, or a batch of copies of it, which can be run again with a new object."""

from __future__ import annotations

import bisect
import functools

import torch
from jaxtyping import Int64
from torch import Tensor

from specbench.core.rng import Streams
from specbench.exactness.enumeration.injection import Point
from specbench.exactness.purity.fresh_copies import Subject
from specbench.exactness.results import ShownRequest
from specbench.exactness.steps import Steps, draw, verified
from specbench.exactness.streams import GivenStreams, request_streams
from specbench.rules.verifier import Verifier

MOST_COPIES = 4096  # in the largest batch that is tried


def run_copies(verifier: Verifier, point: Point, seed: int, position: int, given: bool, batch: int) -> Steps:
    """Verifies a batch of copies of a request.

    Args:
        point: the request.
        seed, position, given, batch: as in ShownRequest.
    """
    device, width = point.fixture.p.device, point.given.shape[1]
    seeds, positions = (torch.full((batch,), value, device=device) for value in (seed, position))
    streams = Streams(seeds, positions, width)
    if given:
        streams = GivenStreams.of(point.given[:, None].repeat(1, batch, 1).to(device), streams)
    return Steps.on_cpu([verified(verifier, draw(verifier, point.fixture, streams))])


def smallest_batch(
    subject: Subject, point: Point, wanted: Int64[Tensor, " width"], request: tuple[int, int] | None = None
) -> ShownRequest | None:
    """Returns the smallest batch of copies in which a request fails: itself alone, if it does so alone.

    If a new object fails in no batch, the request alone is put before one again and again.

    Args:
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

    @functools.cache
    def wrong(batch: int) -> tuple[int, tuple[int, ...]] | None:
        """The first copy of a batch that fails, and its tokens; None if none does."""
        tokens = run_copies(subject.new_object(), *arguments, batch).visible
        places = (tokens != wanted).any(dim=1).nonzero()[:, 0].tolist()
        return (places[0], tuple(tokens[places[0]].tolist())) if places else None

    batch, calls = 1, 1
    while wrong(batch) is None and batch < MOST_COPIES:
        batch *= 2
    if wrong(batch) is not None:  # and half as many copies do not fail
        smaller = range(batch // 2 + 1, batch)
        batch = batch // 2 + 1 + bisect.bisect_left(smaller, True, key=lambda copies: wrong(copies) is not None)
    outcome = wrong(batch)
    if outcome is None:
        wrong_call = subject.first_wrong_call(lambda used: run_copies(used, *arguments, 1).visible[0], wanted)
        if wrong_call is None:
            return None
        calls, tokens = wrong_call
        batch, outcome = 1, (0, tuple(tokens.tolist()))
    return ShownRequest(seed, position, request is None, batch, *outcome, tuple(wanted.tolist()), calls)
