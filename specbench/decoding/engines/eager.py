"""Steps as PyTorch runs them, operation by operation: the reference for other engines."""

from collections.abc import Sequence
from typing import ClassVar

from specbench.decoding.engines.engine import DecodingEngine, ReadReport, moves
from specbench.decoding.step import step
from specbench.decoding.step_result import StepReport
from specbench.sampling.batch import Batch


class EagerEngine(DecodingEngine):
    """A batch has one row for each request, and attention reads as far as the longest of them.

    The host waits for each step before it begins the next.
    """

    name: ClassVar[str] = "eager"
    _batch: Batch | None = None

    def start(self) -> None:
        self._batch = None
        self._prompts.clear()

    def admit(self, batch: Batch, prompts: Sequence[Sequence[int]]) -> list[int]:
        before, capacity = self._batch, batch.tokens.shape[1]
        first = 0 if before is None else len(before)
        rows = list(range(first, first + len(batch)))
        if before is None and not self.prompt_chunk:
            self._place(prompts, rows, capacity)
        else:
            for cache in self.components.caches:
                if before is None:
                    cache.start([], 0)
                cache.reserve(first + len(batch), capacity)
            if self.prompt_chunk:
                batch = self._to_be_fed(batch, prompts, rows)
            else:
                self._place(prompts, rows)
        self._batch = batch if before is None else before.joined(batch)
        return rows

    @property
    def _texts(self) -> Batch:
        assert self._batch is not None, "admit first"
        return self._batch

    def step(self, longest: int) -> ReadReport:
        size = len(self._texts)
        for cache in self.components.caches:
            cache.show(size, longest)
        self._batch, result = step(self._texts, self.components)
        return lambda: StepReport.unpacked(result.packed().tolist(), size)

    def _remove(self, rows: Sequence[int]) -> dict[int, int]:
        batch = self._texts
        remaining = [row for row in range(len(batch)) if row not in set(rows)]
        moved = moves(remaining)
        for cache in self.components.caches:
            cache.move(list(moved), list(moved.values()))
        order = list(range(len(remaining)))
        for source, target in moved.items():
            order[target] = source
        self._prompts.move(moved)
        self._batch = batch.select(self._tensor(order)) if remaining else None
        return moved
