"""Steps as PyTorch runs them, operation by operation: the reference that other engines are held to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch

from specbench.decoding.engines.base import DecodingEngine, Reading, moves
from specbench.decoding.step import Report, step
from specbench.sampling.batch import Batch


class EagerEngine(DecodingEngine):
    """A batch is as large as there are requests, and attention reads as far as the longest of them.

    The host waits for each step before it begins the next.

    Args:
        prompt_chunk: see :class:`DecodingEngine`.
    """

    name: ClassVar[str] = "eager"
    _batch: Batch | None = None

    def start(self) -> None:
        """See :class:`DecodingEngine`."""
        self._batch = None
        self._prompts.clear()
        if self.prompt_chunk:  # else the first prompts begin anew
            for each in self.followers.values():
                each.start([], 0)

    def admit(self, batch: Batch, prompts: Sequence[Sequence[int]]) -> list[int]:
        """See :class:`DecodingEngine`."""
        before, capacity = self._batch, batch.tokens.shape[1]
        first = 0 if before is None else len(before)
        rows = list(range(first, first + len(batch)))
        for name, each in self.followers.items():
            with self.stopwatch(name):
                if before is None and not self.prompt_chunk:
                    each.start(prompts, capacity)
                    continue
                each.reserve(first + len(batch), capacity)
                if not self.prompt_chunk:
                    each.place(prompts, rows)
                each.show(first + len(batch))
        if self.prompt_chunk:
            batch = self._to_be_fed(batch, prompts, rows)
        self._batch = batch if before is None else before.joined(batch)
        return rows

    @property
    def _texts(self) -> Batch:
        assert self._batch is not None, "admit first"
        return self._batch

    def step(self) -> Reading:
        """See :class:`DecodingEngine`."""
        size = len(self._texts)
        self._batch, happened = step(self._texts, self.parts)
        return lambda: Report.of(happened.packed().tolist(), size)

    def retire(self, rows: Sequence[int]) -> dict[int, int]:
        """See :class:`DecodingEngine`."""
        batch = self._texts
        kept = [row for row in range(len(batch)) if row not in set(rows)]
        moved = moves(kept)
        for each in self.followers.values():
            each.move(list(moved), list(moved.values()))
            each.show(len(kept))
        order = list(range(len(kept)))
        for source, target in moved.items():
            order[target] = source
        self._prompts.move(moved)
        index = torch.tensor(order, dtype=torch.int64, device=batch.lengths.device)
        self._batch = batch.select(index) if kept else None
        return moved

    def bound(self, longest: int) -> None:
        """See :class:`DecodingEngine`."""
        for each in self.followers.values():
            each.bound(longest)
