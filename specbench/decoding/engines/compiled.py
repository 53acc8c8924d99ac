"""Captured steps whose models went through torch.compile, which fuses their small kernels."""

from __future__ import annotations

from typing import ClassVar

from specbench.decoding.engines.graph import GraphEngine
from specbench.decoding.step import Parts
from specbench.errors import ConfigError
from specbench.stopwatch import Stopwatch

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
        draft = None if parts.drafter is None else parts.drafter.engine
        for engine in filter(None, (parts.target, draft)):
            engine.compile(self.sums)

    def _sizes(self, powers: set[int]) -> set[int]:
        return set()
