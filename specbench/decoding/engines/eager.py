"""Steps as PyTorch runs them, operation by operation: the reference that other engines are held to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch

from specbench.batch import Batch
from specbench.decoding.engines.base import DecodingEngine, Reading, moves
from specbench.decoding.step import Report, step


class EagerEngine(DecodingEngine):
    """A batch is as large as there are requests, and attention reads as far as the longest of them.

    The host waits for each step before it begins the next.
    """

    name: ClassVar[str] = "eager"
    _batch: Batch | None = None

    def start(self) -> None:
        """See :class:`DecodingEngine`."""
        self._batch = None

    def admit(self, batch: Batch, prompts: Sequence[Sequence[int]]) -> list[int]:
        """See :class:`DecodingEngine`."""
        before, capacity = self._batch, batch.tokens.shape[1]
        first = 0 if before is None else len(before)
        rows = list(range(first, first + len(batch)))
        for name, each in self.followers.items():
            with self.stopwatch(name):
                if before is None:
                    each.start(prompts, capacity)
                else:
                    each.reserve(first + len(batch), capacity)
                    each.place(prompts, rows)
                    each.show(first + len(batch))
        self._batch = batch if before is None else before.joined(batch)
        return rows

    def step(self) -> Reading:
        """See :class:`DecodingEngine`."""
        assert self._batch is not None
        size = len(self._batch)
        self._batch, happened = step(self._batch, self.parts)
        return lambda: Report.of(happened.packed().tolist(), size)

    def retire(self, rows: Sequence[int]) -> dict[int, int]:
        """See :class:`DecodingEngine`."""
        assert self._batch is not None
        kept = [row for row in range(len(self._batch)) if row not in set(rows)]
        moved = moves(kept)
        for each in self.followers.values():
            each.move(list(moved), list(moved.values()))
            each.show(len(kept))
        order = list(range(len(kept)))
        for source, target in moved.items():
            order[target] = source
        index = torch.tensor(order, dtype=torch.int64, device=self._batch.lengths.device)
        self._batch = self._batch.select(index) if kept else None
        return moved

    def bound(self, longest: int) -> None:
        """See :class:`DecodingEngine`."""
        for each in self.followers.values():
            each.bound(longest)
