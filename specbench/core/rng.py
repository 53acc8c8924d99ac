"""Counter-based random streams: the same numbers for a request whatever batch, device or verifier it meets.

Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011). The key is the request's seed;
the counter is (position of the block's first token, offset in the block, stream, 0). The block's position is part of
the counter so that a token drafted again after a rejection gets fresh noise: a rule may look at the whole block before
it stops (block verification does), and reusing a rejected tail's noise would then bias the next block.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

Words = Any  # a torch int64 tensor or a NumPy int64 array: the arithmetic is the same
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_LOW32 = 0xFFFFFFFF
_ROUNDS = 10
CPU_PART = 4096  # requests

MAX_SEED = 2**63 - 1
MAX_POSITION = 2**32 - 1


class Stream(IntEnum):
    """What a uniform is used for; part of the Philox counter."""

    DRAFT = 0
    ACCEPT = 1
    EMIT = 2  # the recovered or bonus token; also every token of plain decoding


def philox(key: tuple[Words, Words], counter: tuple[Words, Words, Words, Words]) -> tuple[Words, Words, Words, Words]:
    """Philox4x32-10 on int64 tensors or NumPy arrays that hold 32-bit words; returns four words of the broadcast shape.

    int64 products wrap modulo 2^64, so masking after an arithmetic shift still yields the upper word.
    """
    k0, k1 = key
    c0, c1, c2, c3 = counter
    for _ in range(_ROUNDS):
        product0, product1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            (product1 >> 32 & _LOW32) ^ c1 ^ k0,
            product1 & _LOW32,
            (product0 >> 32 & _LOW32) ^ c3 ^ k1,
            product0 & _LOW32,
        )
        k0, k1 = (k0 + _WEYL[0]) & _LOW32, (k1 + _WEYL[1]) & _LOW32
    return c0, c1, c2, c3


def to_uniform(high: Tensor, low: Tensor) -> Float64[Tensor, " ..."]:
    """Two 32-bit words -> (k + 1/2) / 2^52 with k of 52 bits: in the open interval (0, 1), exact in float64.

    Never 0, so that ``u * q < p`` never accepts p = 0 and log u is finite; never 1, so that p = q always accepts.
    """
    bits = (high << 20) | (low >> 12)
    return (bits.double() + 0.5) * 2.0**-52


@dataclass(frozen=True)
class Streams:
    """The random numbers of one verification step of B requests.

    Verifiers refuse seeds and positions outside of what is said here (arguments.py). Where nobody has looked, host and
    kernels (kernels/tiles.py) still draw the same numbers: all 64 bits of a seed count, those of a negative one in
    two's complement, and the lowest 32 of a position, so that 2^32 draws what 0 does.

    Attributes:
        seeds: request seeds, 0 to 2^63 - 1.
        positions: index in the sequence (prompt included) of the first token that this step will emit, 0 to 2^32 - 1.
        width: how many offsets ``uniform`` may be asked for, at least max_draft_tokens + 1.
        made: the uniforms by stream, if somebody has made them already.
    """

    seeds: Int64[Tensor, " B"]
    positions: Int64[Tensor, " B"]
    width: int
    made: Float64[Tensor, "streams B width"] | None = field(default=None, repr=False)

    @cached_property
    def _table(self) -> Float64[Tensor, "streams B width"]:
        if self.made is not None:
            return self.made
        device = self.seeds.device
        offsets = torch.arange(self.width, device=device)[None, None, :]
        streams = torch.arange(len(Stream), device=device)[:, None, None]
        zero = torch.zeros((1, 1, 1), dtype=torch.int64, device=device)
        # On a CPU two hundred operations in turn: in parts, so that their results stay in the cache.
        size = CPU_PART if device.type == "cpu" else max(len(self.seeds), 1)
        parts = []
        for seeds, positions in zip(
            self.seeds[None, :, None].split(size, 1), self.positions[None, :, None].split(size, 1), strict=True
        ):
            words = (seeds & _LOW32, seeds >> 32 & _LOW32, positions & _LOW32, offsets, streams, zero)
            if device.type == "cpu":  # NumPy starts an operation in a third of the time
                arrays = [np.atleast_1d(word.numpy()) for word in words]
                high, low, _, _ = philox((arrays[0], arrays[1]), (arrays[2], arrays[3], arrays[4], arrays[5]))
                high, low = torch.from_numpy(high), torch.from_numpy(low)
            else:
                high, low, _, _ = philox((words[0], words[1]), (words[2], words[3], words[4], words[5]))
            parts.append(to_uniform(high, low))
        return torch.cat(parts, dim=1) if len(parts) > 1 else parts[0]

    def uniform(self, stream: Stream) -> Float64[Tensor, "B width"]:
        """The uniforms in (0, 1) of a stream at every offset of the block."""
        return self._table[stream]

    def reaching(self, width: int) -> Streams:
        """The same streams for at least so many offsets: a tree has more tokens than a chain as deep."""
        return self if width <= self.width else Streams(self.seeds, self.positions, width)

    def select(self, requests: Int64[Tensor, " m"]) -> Streams:
        """The streams of some requests."""
        made = None if self.made is None else self.made[:, requests]
        return Streams(self.seeds[requests], self.positions[requests], self.width, made)
