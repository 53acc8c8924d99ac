"""Steps of fixed shapes whose models and small functions have few kernels: ours, or those of torch.compile.

On a GPU they are captured too. On a CPU compiled_cpu.py takes them.
"""

from __future__ import annotations

import functools
from typing import ClassVar

from jaxtyping import Int64
from torch import Tensor

from specbench.core import fusion
from specbench.core.errors import ModelError
from specbench.core.machine import ranks
from specbench.core.machine.progress import say, say_once
from specbench.decoding.engines.compiled_cpu import CompiledCpuEngine
from specbench.decoding.engines.engine import DecodingEngine, Requirements
from specbench.decoding.engines.graph import Captured, GraphEngine
from specbench.decoding.step import StepComponents
from specbench.decoding.stopwatch import Stopwatch


class CompiledEngine(GraphEngine):
    """Steps are made for the largest number of requests alone, since torch.compile takes tens of seconds a shape.

    Args:
        batch_sizes: other numbers of requests to make steps for.
        prompt_chunk: see StaticEngine.
    """

    name: ClassVar[str] = "compiled"
    halves: ClassVar[bool] = False

    def _choose(self, required: Requirements) -> DecodingEngine:
        if required.device.type == "cpu":
            return CompiledCpuEngine(self.configured_sizes or None, self.prompt_chunk)
        return self

    def _attach(self, components: StepComponents, stopwatch: Stopwatch) -> None:
        # Here: Triton need not be installed without a GPU.
        from specbench.kernels import dependent

        super()._attach(components, stopwatch)
        if ranks.is_rank0():
            say_once("engine=compiled: code that is not in the caches of PyTorch and Triton takes minutes to compile")
        self._early = dependent.possible(self._device)
        self._compile()

    def _compile(self) -> None:
        from specbench.extras.compiled.compiling import compile_fixed, compile_model

        drafter = self.components.drafter
        draft = None if drafter is None else drafter.model
        for model in filter(None, (self.components.target, draft)):
            compile_model(model, self._early)
        self._fuse = functools.cache(functools.partial(compile_fixed, early=self._early))

    def _step_of(self, size: int) -> Int64[Tensor, " n"]:
        with fusion.fused_by(self._fuse):
            return super()._step_of(size)

    def _captured(self, size: int) -> Captured:
        from specbench.extras.compiled import early_code

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
