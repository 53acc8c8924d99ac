"""Captured steps whose models went through torch.compile, which fuses their small kernels."""

from __future__ import annotations

from typing import ClassVar

from specbench.decoding.engines.graph import GraphEngine
from specbench.decoding.step import Parts
from specbench.stopwatch import Stopwatch


class CompiledEngine(GraphEngine):
    """A shape takes torch.compile tens of seconds, so that steps are made for the most requests side by side alone.

    Args:
        batch_sizes: other numbers of requests to make steps for.
        prompt_chunk: see StaticEngine.
    """

    name: ClassVar[str] = "compiled"

    def _attach(self, parts: Parts, stopwatch: Stopwatch) -> None:
        super()._attach(parts, stopwatch)
        draft = None if parts.drafter is None else parts.drafter.engine
        for engine in filter(None, (parts.target, draft)):
            engine.compile()

    def _sizes(self, powers: set[int]) -> set[int]:
        return set()
