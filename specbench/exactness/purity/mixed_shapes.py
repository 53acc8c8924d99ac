"""Small fixtures in many shapes, and streams for calls of them: what one verifier object is used on (long_use.py)."""

from __future__ import annotations

import random

import torch

from specbench.core.rng import Streams
from specbench.exactness.fixtures import Fixture, make_fixture
from specbench.exactness.streams import LONG_USE, request_streams, uniforms
from specbench.rules.verifier import Limits
from specbench.sampling import SamplingParams

NAME = "long use"  # of each fixture
MOST_GAMMA, MOST_REQUESTS, MOST_TOKENS = 8, 16, 64  # draft length, requests of a batch, vocabulary
READY = 2**14  # requests whose uniforms are computed beforehand
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


def ready_streams(seed: int, device: torch.device) -> Streams:
    """Streams of READY requests with their uniforms: half of the seeds and positions as users write them."""
    generator = torch.Generator().manual_seed(seed)
    streams = request_streams(seed, LONG_USE, READY, MOST_GAMMA + 1, device)
    usual = torch.randint(_USUAL_SEEDS, (2, READY), generator=generator).to(device)
    small = torch.rand((2, READY), generator=generator).to(device) < 0.5
    seeds, positions = torch.where(small, usual, torch.stack([streams.seeds, streams.positions]))
    return Streams(seeds, positions, streams.width, uniforms(Streams(seeds, positions, streams.width)))


def mixed_shape(chance: random.Random, generator: torch.Generator, limits: Limits) -> Fixture:
    """A pair of models in one of many shapes, on the CPU.

    Args:
        chance: chooses the shape.
        generator: of the logits.
        limits: of the verifier; what they rule out is not made.
    """
    vocabulary, gamma = chance.randint(2, MOST_TOKENS), chance.randint(0 if limits.empty else 1, MOST_GAMMA)
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
        NAME,
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
