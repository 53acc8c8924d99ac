"""The random streams that steps are drawn from: requests' own, or given numbers in their place."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from specbench.core.rng import MAX_POSITION, MAX_SEED, Stream, Streams

BLOCKS = 2**40  # requests between those of one run and the next; runs whose seeds differ by 2**22 have the same ones
# Where the requests of each part of a run begin in its block.
SMALL_PAIRS, HABITS, SERIAL, LONG_USE, CAUSES = (i * BLOCKS // 8 for i in (0, 1, 2, 5, 6))
_ROOM = 256  # positions are left for the steps that follow the first
# What an index of 31 or 32 bits, a signed number or a counter that begins at 1 would take wrongly.
END_SEEDS = (0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**32, MAX_SEED)
END_POSITIONS = (0, 1, 2**16 - 1, 2**16, 2**31 - 1, 2**31, MAX_POSITION)
_SPECIAL = 64  # each number above stands in one request of _SPECIAL


def request_streams(run_seed: int, first: int, size: int, width: int, device: torch.device) -> Streams:
    """Streams of ``size`` requests, numbers ``first``, ``first`` + 1, ... of a run, none of which share a stream.

    Seeds are of all 63 bits, positions of all magnitudes up to 2^32 - 1, and the ends of both ranges are among them.
    """
    numbers = torch.arange(size, device=device) + (run_seed * BLOCKS + first) % 2**62
    seeds = _mixed(numbers) & MAX_SEED
    bits = _mixed(numbers + 2**62)
    place = numbers % _SPECIAL
    # A seed that comes again and again gets positions of all 32 bits, or its streams would come again too.
    magnitude = torch.where(place < len(END_SEEDS), 0, (bits >> 32) & 31)
    positions = ((bits & 0xFFFFFFFF) >> magnitude).clamp(max=MAX_POSITION - _ROOM)
    for i, (seed, position) in enumerate(zip(END_SEEDS, END_POSITIONS, strict=True)):
        seeds = torch.where(place == i, seed, seeds)
        positions = torch.where(place == i + len(END_SEEDS), position, positions)
    return Streams(seeds, positions, width)


def _mixed(numbers: Int64[Tensor, " n"]) -> Int64[Tensor, " n"]:
    """64 bits that look random, a bijection: the finaliser of SplitMix64 (Steele et al., OOPSLA 2014)."""
    bits = numbers * -7046029254386353131  # 0x9E3779B97F4A7C15; products wrap modulo 2^64
    for shift, factor in ((30, -4658895280553007687), (27, -7723592293110705685)):
        bits = (bits ^ _shifted(bits, shift)) * factor
    return bits ^ _shifted(bits, 31)


def _shifted(bits: Int64[Tensor, " n"], by: int) -> Int64[Tensor, " n"]:
    return (bits >> by) & (2 ** (64 - by) - 1)


@dataclass(frozen=True)
class GivenStreams(Streams):
    """Streams whose uniforms are given (``made``); remembers which were read."""

    read: set[Stream] = field(default_factory=set, kw_only=True)

    @staticmethod
    def of(given: Float64[Tensor, "streams B width"], like: Streams | None = None) -> GivenStreams:
        """Streams that yield the given uniforms, with the seeds and positions of others or of ordinary requests."""
        if like is None:
            like = request_streams(0, _SPECIAL, given.shape[1], given.shape[2], given.device)
        return GivenStreams(like.seeds, like.positions, given.shape[2], given)

    def uniform(self, stream: Stream) -> Float64[Tensor, "B width"]:
        self.read.add(stream)
        return super().uniform(stream)

    def select(self, requests: Int64[Tensor, " m"]) -> GivenStreams:
        chosen = super().select(requests)
        return GivenStreams(chosen.seeds, chosen.positions, chosen.width, chosen.made, read=self.read)


def uniforms(streams: Streams) -> Float64[Tensor, "streams B width"]:
    return torch.stack([streams.uniform(stream) for stream in Stream])
