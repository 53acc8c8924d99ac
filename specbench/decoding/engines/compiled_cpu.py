"""Steps on a CPU whose passes are C++ code of ours or went through torch.compile; ``engine=compiled`` there."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import ClassVar

import torch
from jaxtyping import Int64
from torch import Tensor
from torch._dynamo.exc import TorchDynamoException
from torch._inductor.exc import CppCompileError, InvalidCxxCompiler

from specbench.core.errors import ConfigError, ModelError, SpecbenchError
from specbench.core.machine.progress import say
from specbench.decoding.engines.engine import Requirements
from specbench.decoding.engines.static import StaticEngine, rounded
from specbench.decoding.step import StepComponents
from specbench.decoding.stopwatch import Stopwatch
from specbench.kernels import cpu_product, cpu_rows
from specbench.models import CachedModel
from specbench.models.compiling_cpu import compile_on_cpu, prepared_capacities
from specbench.sampling.batch import Batch

SPARE = 32  # tokens


class CompiledCpuEngine(StaticEngine):
    """Compiles what is needed, at the latest when the first request comes; later jobs of a process use the same code.

    The host waits for each step before it begins the next, since both run on the CPU.

    Args:
        batch_sizes: numbers of rows; None stands for the largest number of requests together alone.
    """

    name: ClassVar[str] = "compiled"
    lag: ClassVar[int] = 0
    halves: ClassVar[bool] = False
    fixed: ClassVar[bool] = False

    def _check(self, required: Requirements) -> None:
        """See StaticEngine. A C++ compiler is needed, and a folder for what it makes."""
        if required.device.type != "cpu":
            raise ConfigError("engine", self.name, f"for CPUs, and device is {required.device}", "Use CompiledEngine.")
        cpu_product.find_compiler()
        cpu_product.cache_folder()
        super()._check(required)

    def _attach(self, components: StepComponents, stopwatch: Stopwatch) -> None:
        super()._attach(components, stopwatch)
        self._prepared: set[tuple[object, ...]] = set()
        with self._preparing():
            for model in self._models:
                compile_on_cpu(model, bool(components.features))

    @property
    def _models(self) -> list[CachedModel]:
        target, drafter = self.components.target, self.components.drafter
        return [target] if drafter is None or drafter.model is None else [target, drafter.model]

    def admit(self, batch: Batch, prompts: Sequence[Sequence[int]]) -> list[int]:
        with cpu_rows.drawing():
            return super().admit(batch, prompts)

    def feed(self) -> None:
        with cpu_rows.drawing():
            super().feed()

    def reserve(self, requests: int, capacity: int, stops: int) -> None:
        """See StaticEngine. Takes a little more than is needed, since the next job of a sweep may have a larger gamma.

        If the target is compiled for a capacity in between, takes that one. A larger one is left alone: passes read all
        of it, and a job's times would depend on the longest texts of the jobs before.
        """
        if capacity > self._capacity:
            prepared = prepared_capacities.get(self.components.target.model, ())
            spare = capacity + SPARE
            capacity = min((size for size in prepared if capacity <= size <= rounded(spare)), default=spare)
        super().reserve(requests, capacity, stops)

    def _show(self) -> None:
        super()._show()
        prepared = (self._size, self.shaping)
        if prepared not in self._prepared:
            self._prepare()
            self._prepared.add(prepared)

    def _step_of(self, size: int) -> Int64[Tensor, " n"]:
        with cpu_rows.drawing():
            return super()._step_of(size)

    @torch.inference_mode()
    def _prepare(self) -> None:
        """Takes a trial step, which compiles what torch.compile has to, unless there is code for it."""
        for model in self._models:
            prepared_capacities.setdefault(model.model, set()).add(model.capacity)
        with self._preparing(), self._trial():
            try:
                self._step_of(self._size)
            except SpecbenchError:
                raise
            except (OSError, TorchDynamoException) as error:  # a RuntimeError may be of a user's code
                raise ModelError(_advice(error)) from error

    @contextmanager
    def _preparing(self) -> Generator[None]:
        began = time.perf_counter()
        yield
        seconds = time.perf_counter() - began
        self.preparation += seconds
        if seconds > 1:
            say(f"engine=compiled: prepared in {seconds:.0f} s; code is kept in {cpu_product.cache_folder()}")


def _advice(error: Exception) -> str:
    """Returns the message of an error that came while models were compiled: by a compiler, by a disk or by PyTorch."""
    cause = getattr(error, "inner_exception", error)
    printed = str(cause).partition("\nOutput:\n")[2]  # what a compiler printed, after its long command
    problem = cpu_product.first_error(printed or str(error) or type(error).__name__)
    if "No space left" in problem or "Read-only" in problem:
        remedy = "Name a folder with room in TORCHINDUCTOR_CACHE_DIR, or use engine=eager."
    elif isinstance(cause, CppCompileError | InvalidCxxCompiler):
        remedy = "Name another C++ compiler in CXX, or use engine=eager."
    else:
        remedy = "Use engine=eager."
    return f"engine=compiled: the models cannot be compiled: {problem}. {remedy}"
