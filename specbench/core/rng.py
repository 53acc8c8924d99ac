"""Counter-based random streams: the same numbers for a request whatever batch, device or verifier it meets.

Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011). The key is the request's seed;
the counter is (position of the block's first token, offset in the block, stream, 0). The block's position is part of
the counter so that a token drafted again after a rejection gets fresh noise: a rule may look at the whole block before
it stops (block verification does), and reusing a rejected tail's noise would then bias the next block.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
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
    if isinstance(counter[0], np.ndarray):
        return _philox_of_arrays(key, counter)
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


def _philox_of_arrays(key: Sequence[np.ndarray], counter: Sequence[np.ndarray]) -> tuple[Words, Words, Words, Words]:
    """The same for NumPy, in a third of the operations: the two halves of a round are one array."""
    shape = (2, *np.broadcast_shapes(*(words.shape for words in (*key, *counter))))
    even, odd, first_keys = (np.empty(shape, dtype=np.uint64) for _ in range(3))
    for pair, words in ((even, counter[::2]), (odd, counter[1::2]), (first_keys, key)):
        pair[0], pair[1] = words
    ones = [1] * (len(shape) - 1)
    multipliers, weyl = (np.array(pair, np.uint64).reshape(2, *ones) for pair in (_MULTIPLIERS, _WEYL))
    low, half = np.uint64(_LOW32), np.uint64(32)
    keys = (first_keys + weyl * np.arange(_ROUNDS, dtype=np.uint64).reshape(_ROUNDS, 1, *ones)) & low
    for round_keys in keys:
        product = even * multipliers
        even = (product >> half)[::-1] ^ odd ^ round_keys
        odd = (product & low)[::-1]
    even, odd = even.view(np.int64), odd.view(np.int64)
    return even[0], odd[0], even[1], odd[1]


def to_uniform(high: Tensor, low: Tensor) -> Float64[Tensor, " ..."]:
    """Two 32-bit words -> (k + 1/2) / 2^52 with k of 52 bits: in the open interval (0, 1), exact in float64.

    Never 0, so that ``u * q < p`` never accepts p = 0 and log u is finite; never 1, so that p = q always accepts.
    """
    bits = (high << 20) | (low >> 12)
    return (bits.double() + 0.5) * 2.0**-52


@dataclass(frozen=True)
class Streams:
    """The random numbers of one verification step of B requests.

    Verifiers refuse seeds and positions outside of what is said here (arguments.py). Where they were not checked, host
    and kernels (kernels/tiles.py) still draw the same numbers: all 64 bits of a seed count, those of a negative one in
    two's complement, and the lowest 32 of a position, so that 2^32 draws what 0 does.

    Attributes:
        seeds: request seeds, 0 to 2^63 - 1.
        positions: index in the sequence (prompt included) of the first token that this step will emit, 0 to 2^32 - 1.
        width: how many offsets ``uniform`` may be asked for, at least max_draft_tokens + 1.
        made: the uniforms by stream, as far as they exist already.
    """

    seeds: Int64[Tensor, " B"]
    positions: Int64[Tensor, " B"]
    width: int
    made: Float64[Tensor, "streams B width"] | None = field(default=None, repr=False)

    @cached_property
    def _table(self) -> Float64[Tensor, "streams B width"]:
        if self.made is not None:
            return self.made
        if self.seeds.is_cpu:  # NumPy starts an operation in a third of the time
            seeds, positions = self.seeds.numpy(), self.positions.numpy()
            # In parts, so that the results of all operations stay in the cache.
            parts = range(0, len(seeds), CPU_PART) or [0]
            tables = [self._uniforms(seeds[i : i + CPU_PART], positions[i : i + CPU_PART], np) for i in parts]
            return torch.cat(tables, dim=1) if len(tables) > 1 else tables[0]
        with self.seeds.device:
            return self._uniforms(self.seeds, self.positions, torch)

    def _uniforms(self, seeds: Words, positions: Words, library: Any) -> Float64[Tensor, "streams B width"]:
        """Returns the uniforms of some requests, computed by NumPy or torch."""
        seeds, positions = seeds[None, :, None], positions[None, :, None]
        offsets, streams = library.arange(self.width)[None, None], library.arange(len(Stream))[:, None, None]
        key = (seeds & _LOW32, seeds >> 32 & _LOW32)
        high, low, _, _ = philox(key, (positions & _LOW32, offsets, streams, streams & 0))
        return to_uniform(*(torch.as_tensor(words) for words in (high, low)))

    def uniform(self, stream: Stream) -> Float64[Tensor, "B width"]:
        """The uniforms in (0, 1) of a stream at every offset of the block."""
        return self._table[stream]

    def reaching(self, width: int) -> Streams:
        """The same streams for at least this many offsets: a tree has more tokens than a chain as deep."""
        return self if width <= self.width else Streams(self.seeds, self.positions, width)

    def select(self, requests: Int64[Tensor, " m"]) -> Streams:
        """The streams of some requests."""
        made = None if self.made is None else self.made[:, requests]
        return Streams(self.seeds[requests], self.positions[requests], self.width, made)


def seed_global_generators(seed: int) -> None:
    """Seeds Python's, NumPy's and PyTorch's generators: specbench draws from none of them, but a user's code may."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed % 2**63)
