"""Chooses the engine: CUDA graphs on a GPU, if all components of the step can be captured, and eager elsewhere."""

from __future__ import annotations

from specbench.core.errors import ConfigError
from specbench.core.machine.progress import say
from specbench.decoding.engines.base import DecodingEngine, Requirements
from specbench.decoding.engines.eager import EagerEngine
from specbench.decoding.engines.graph import GraphEngine


class AutoEngine(DecodingEngine):
    """Results have the name of the engine that ran.

    Args:
        prompt_chunk: see :class:`DecodingEngine`.
    """

    def _choose(self, required: Requirements) -> DecodingEngine:
        if required.device.type == "cuda":
            engine = GraphEngine(prompt_chunk=self.prompt_chunk)
            try:
                engine._check(required)
            except ConfigError as error:
                say(f"engine=auto is eager here: {error}")
            else:
                return engine
        return EagerEngine(self.prompt_chunk)
