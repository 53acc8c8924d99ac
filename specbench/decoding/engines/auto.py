"""Chooses the engine: CUDA graphs on a GPU, if all components of the step can be captured, and eager elsewhere."""

from __future__ import annotations

import torch

from specbench.core.errors import ConfigError
from specbench.core.machine.progress import say
from specbench.decoding.engines.base import DecodingEngine
from specbench.decoding.engines.eager import EagerEngine
from specbench.decoding.engines.graph import GraphEngine
from specbench.decoding.step import StepComponents
from specbench.decoding.stopwatch import Stopwatch
from specbench.drafters import Drafter
from specbench.rules.verifier import Verifier


class AutoEngine(DecodingEngine):
    """Results have the name of the engine that ran.

    Args:
        prompt_chunk: see :class:`DecodingEngine`.
    """

    def resolve(
        self,
        device: torch.device,
        drafter: Drafter | None,
        verifier: Verifier | None,
        batch_size: int = 1,
        on_host: str = "",
    ) -> DecodingEngine:
        """See :class:`DecodingEngine`."""
        settings = (device, drafter, verifier, batch_size, on_host)
        if device.type == "cuda":
            try:
                return GraphEngine(prompt_chunk=self.prompt_chunk).resolve(*settings)
            except ConfigError as error:
                say(f"engine=auto is eager here: {error}")
        return EagerEngine(self.prompt_chunk).resolve(*settings)

    def bind(self, components: StepComponents, stopwatch: Stopwatch) -> DecodingEngine:
        """See :class:`DecodingEngine`."""
        target, drafter, verifier = components.target, components.drafter, components.verifier
        return self.resolve(target.device, drafter, verifier).bind(components, stopwatch)
