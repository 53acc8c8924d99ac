"""Captured steps whose models went through torch.compile, which fuses their small kernels."""

from __future__ import annotations

from typing import ClassVar

from specbench.core.errors import ConfigError, ModelError
from specbench.core.machine import ranks
from specbench.core.machine.progress import say
from specbench.decoding.engines.graph import Captured, GraphEngine
from specbench.decoding.step import Parts
from specbench.decoding.stopwatch import Stopwatch
from specbench.kernels import dependent
from specbench.models import early_code

SUMS = ("nccl", "auto")


class CompiledEngine(GraphEngine):
    """A shape takes torch.compile tens of seconds, so that steps are made for the most requests side by side alone.

    Args:
        batch_sizes: other numbers of requests to make steps for.
        prompt_chunk: see StaticEngine.
        sums: how the ranks of a sharded target add up what they computed: ``auto`` or ``nccl`` (models/summed.py).
    """

    name: ClassVar[str] = "compiled"

    def __init__(self, batch_sizes: object = None, prompt_chunk: object = None, sums: object = "nccl"):
        super().__init__(batch_sizes, prompt_chunk)
        if sums not in SUMS:
            raise ConfigError("engine.sums", sums, "not known", f"Use {' or '.join(SUMS)}.")
        self.sums = str(sums)

    def _attach(self, parts: Parts, stopwatch: Stopwatch) -> None:
        super()._attach(parts, stopwatch)
        self._early = dependent.possible(parts.target.device)
        self._compile()

    def _compile(self) -> None:
        draft = None if self.parts.drafter is None else self.parts.drafter.engine
        for engine in filter(None, (self.parts.target, draft)):
            engine.compile(self.sums, self._early)

    def _captured(self, size: int) -> Captured:
        captured = super()._captured(size)
        if not self._early:
            return captured
        try:
            ranks.together(early_code.check)  # all ranks have to take the same kernels
        except (ModelError, ranks.RankError) as error:
            if ranks.is_rank0():
                say(f"engine=compiled: kernels of torch.compile start one after the other: {error}.")
            self._early = False
            self._compile()
            return super()._captured(size)
        return captured

    def _sizes(self, powers: set[int]) -> set[int]:
        return set()
