"""The engine that fits: CUDA graphs on a GPU, if all parts of the step can be captured, and eager elsewhere."""

from __future__ import annotations

import torch

from specbench.core.errors import ConfigError
from specbench.core.machine.progress import say
from specbench.decoding.engines.base import DecodingEngine
from specbench.decoding.engines.eager import EagerEngine
from specbench.decoding.engines.graph import GraphEngine
from specbench.decoding.step import Parts
from specbench.decoding.stopwatch import Stopwatch
from specbench.drafters import Drafter
from specbench.verifiers import Verifier


class AutoEngine(DecodingEngine):
    """Results say which engine ran.

    Args:
        prompt_chunk: see :class:`DecodingEngine`.
    """

    def chosen(
        self, device: torch.device, drafter: Drafter | None, verifier: Verifier | None, on_host: str = ""
    ) -> DecodingEngine:
        """See :class:`DecodingEngine`."""
        if device.type != "cuda":
            return EagerEngine(self.prompt_chunk)
        graph = GraphEngine(prompt_chunk=self.prompt_chunk)
        try:
            graph.check(device, drafter, verifier, on_host=on_host)
        except ConfigError as error:
            say(f"engine=auto is eager here: {error}")
            return EagerEngine(self.prompt_chunk)
        return graph

    def bind(self, parts: Parts, stopwatch: Stopwatch) -> DecodingEngine:
        """See :class:`DecodingEngine`."""
        return self.chosen(parts.target.device, parts.drafter, parts.verifier).bind(parts, stopwatch)
