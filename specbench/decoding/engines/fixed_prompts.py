"""Short prompts fed by passes of fixed widths, which a CUDA graph can hold.

A pass over a prompt that Python launches takes as long as Python does, which for a short prompt is several times what
the GPU needs. Here a prompt is cut into pieces, each padded to one of a few widths, and each width has a captured pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeGuard

import torch
from jaxtyping import Int64
from torch import Tensor

from specbench.models import CachedModel, RowCache

WIDTHS = (32, 64, 128, 256, 512)  # tokens of a pass
MOST_PASSES = 4  # at once; beyond, the GPU is busy for as long as Python with one pass over all prompts

Pass = Callable[[], None]
Capture = Callable[[Pass, int], Pass]  # a pass and its width -> what repeats it


class FixedPrompts:
    """Feeds pieces of prompts to caches that can be fed in fixed shapes."""

    def __init__(self) -> None:
        # Of each cache its passes by width, and what every pass reads: the row, tokens fed before, the number of
        # tokens, and the tokens, right-padded.
        self._passes: dict[int, tuple[dict[int, Pass], Int64[Tensor, " numbers"]]] = {}

    def forget(self) -> None:
        """Forgets all passes, whose memory has been allocated anew."""
        self._passes.clear()

    def prepared(self, cache: CachedModel) -> bool:
        """Whether the passes of a cache are captured."""
        return id(cache) in self._passes

    def takes(self, cache: RowCache, pieces: Sequence[Sequence[int]]) -> TypeGuard[CachedModel]:
        """Returns whether these pieces are few and short enough."""
        if not isinstance(cache, CachedModel) or not cache.feeds_fixed:
            return False
        return sum(len(_cut(len(piece), cache.capacity)) for piece in pieces) <= MOST_PASSES

    @torch.inference_mode()
    def prepare(self, cache: CachedModel, row: int, first: int, capture: Capture) -> None:
        """Captures the passes of a cache.

        Args:
            capture: see ``Capture``. It is not kept: a cycle of references would hold graphs until Python collects it.
            row: whose request has ``first`` tokens in the cache; what lies behind them may be overwritten.
        """
        inputs = torch.zeros(3 + WIDTHS[-1], dtype=torch.int64, device=cache.device)
        inputs[:2] = torch.tensor([row, first])
        at, begin, count = inputs[:1], inputs[1:2], inputs[2:3]
        passes: dict[int, Pass] = {}
        for width in reversed(_widths(cache.capacity)):  # passes share memory, and the largest needs most
            tokens = inputs[3 : 3 + width][None]
            passes[width] = capture(partial(cache.feed_fixed, tokens, at, begin, count), width)
        self._passes[id(cache)] = passes, inputs

    @torch.inference_mode()
    def feed(
        self, cache: CachedModel, pieces: Sequence[Sequence[int]], rows: Sequence[int], first: Sequence[int]
    ) -> None:
        """As :meth:`specbench.models.RowCache.feed`, after :meth:`prepare`."""
        passes, inputs = self._passes[id(cache)]
        for piece, row, begin in zip(pieces, rows, first, strict=True):
            if begin == 0:
                cache.clear(row)
            fed = 0
            for width in _cut(len(piece), cache.capacity):
                tokens = piece[fed : fed + width]
                numbers = torch.tensor([row, begin + fed, len(tokens), *tokens])
                inputs[: len(numbers)].copy_(numbers, non_blocking=True)
                passes[width]()
                fed += width


def _widths(capacity: int) -> list[int]:
    """Returns the widths of passes. One as wide as the cache would be taken for a whole text (models/attention.py)."""
    return [width for width in WIDTHS if width < capacity]


def _cut(tokens: int, capacity: int) -> list[int]:
    """Returns the widths of the passes over a number of tokens, at least one pass."""
    *_, widest = widths = _widths(capacity)
    full, rest = divmod(tokens, widest)
    return [widest] * full + ([min(width for width in widths if width >= rest)] if rest or not full else [])
