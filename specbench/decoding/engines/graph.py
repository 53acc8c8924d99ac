"""Each step as one CUDA graph: the GPU runs from draft to commit without the host.

A step of another size, or of another way to shape distributions, is another graph; all share their memory. Of ways to
shape distributions the last few are kept: requests may ask for any mix, and each graph takes memory of the driver's.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Sequence
from typing import ClassVar

import torch
from jaxtyping import Int64
from torch import Tensor

from specbench.core.conf import config_name
from specbench.core.errors import ConfigError, ModelError
from specbench.decoding.engines.base import Reading
from specbench.decoding.engines.static import StaticEngine
from specbench.decoding.step import Parts, Report
from specbench.decoding.stopwatch import Stopwatch
from specbench.drafters import Drafter
from specbench.sampling.batch import Batch
from specbench.verifiers import Verifier
from specbench.verifiers.base import offers

TRIALS = 2  # steps before one is captured, in which kernels are compiled and memory is taken
BUFFERS = 2  # on the host: one is read while the other is written
SHAPINGS = 16  # ways to shape distributions whose graphs are kept
Captured = tuple[torch.cuda.CUDAGraph, Int64[Tensor, " n"]]  # a step, and where it leaves Happened.packed()


class GraphEngine(StaticEngine):
    """Captures its steps when the first request comes, the largest first; see StaticEngine.

    Args:
        batch_sizes, prompt_chunk: see StaticEngine.
    """

    name: ClassVar[str] = "graph"

    def check(
        self,
        device: torch.device,
        drafter: Drafter | None,
        verifier: Verifier | None,
        batch_size: int = 1,
        on_host: str = "",
    ) -> None:
        """See StaticEngine; a GPU is needed too, and nothing that works on the host, in the verifier or the door."""
        if device.type != "cuda":
            remedy = "Use engine=auto, or engine=static to see its steps elsewhere."
            raise ConfigError("engine", self.name, f"CUDA graphs need a GPU, and device is {device}", remedy)
        if verifier is not None:
            offered = offers(verifier)
            if not offered.takes_padded or not offered.limits.capturable:
                problem = f"verifier={config_name('verifier', verifier)} has to read its drafts on the host"
                raise ConfigError("engine", self.name, problem, "Use engine=eager, or verifier=fused or masked.")
        self._check_on_host(on_host)
        super().check(device, drafter, verifier, batch_size, on_host)

    def _check_on_host(self, on_host: str) -> None:
        if on_host:
            raise ConfigError("engine", self.name, f"{on_host} works on the host", "Use engine=auto or engine=eager.")

    def admit(self, batch: Batch, prompts: Sequence[Sequence[int]]) -> list[int]:
        """See StaticEngine. Raises ConfigError for requests that are processed on the host."""
        self._check_on_host(batch.params.on_host)
        return super().admit(batch, prompts)

    def _attach(self, parts: Parts, stopwatch: Stopwatch) -> None:
        super()._attach(parts, stopwatch)
        self._graphs: dict[tuple[object, ...], dict[int, Captured]] = {}  # by shaping, used last at the end, and size
        self._of_layout: tuple[object, ...] = ()
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(parts.target.device)
        self._buffers: dict[int, list[Tensor]] = {}
        self._steps = 0

    def _make_room(self) -> None:
        super()._make_room()
        if self.layout != self._of_layout:
            self._graphs.clear()
            self._of_layout = self.layout
            # PyTorch takes no pool again whose graphs are all gone while a tensor of them is left.
            self._pool = torch.cuda.graph_pool_handle()

    def _show(self) -> None:
        super()._show()
        graphs = self._graphs.pop(self.shaping, None) or self._captured_all()
        self._graphs[self.shaping] = graphs
        if len(self._graphs) > SHAPINGS:
            del self._graphs[next(iter(self._graphs))]

    def _captured_all(self) -> dict[int, Captured]:
        began, shown, graphs = time.perf_counter(), self._size, {}
        for size in sorted(self.batch_sizes, reverse=True):
            for each in self.followers.values():
                each.show(size, fixed=True)
            graphs[size] = self._captured(size)
        for each in self.followers.values():
            each.show(shown, fixed=True)
        torch.cuda.synchronize(self.parts.target.device)
        self.preparation += time.perf_counter() - began
        return graphs

    @torch.inference_mode()
    def _captured(self, size: int) -> Captured:
        graph, device = torch.cuda.CUDAGraph(), self.parts.target.device
        batch = self._slots_now.batch
        states = [batch.tokens, batch.lengths, batch.finished, self.parts.target.lengths]
        states += [] if self.parts.drafter is None else self.parts.drafter.state()
        before = [state.clone() for state in states]
        try:
            self._stream.wait_stream(torch.cuda.current_stream(device))
            with torch.cuda.stream(self._stream):
                for _ in range(TRIALS):
                    self._step_of(size)
            torch.cuda.current_stream(device).wait_stream(self._stream)
            # NCCL has a thread that asks the GPU about its work meanwhile, which a capture would otherwise forbid.
            mode = "global" if self.parts.target.shards is None else "thread_local"
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode=mode):
                numbers = self._step_of(size)
        except torch.OutOfMemoryError as error:
            raise ModelError(
                f"engine={self.name}: no memory for a step of {size} requests of {self._capacity} tokens. Lower "
                "batch_size or max_new_tokens, or use engine=eager."
            ) from error
        except RuntimeError as error:
            raise ModelError(
                f"engine={self.name}: a step of {size} requests cannot be captured in a CUDA graph: {_place(error)}. "
                "Use engine=eager."
            ) from error
        for state, value in zip(states, before, strict=True):
            state.copy_(value)
        return graph, numbers

    def step(self) -> Reading:
        """See :class:`specbench.decoding.engines.base.DecodingEngine`."""
        size = self._size
        graph, numbers = self._graphs[self.shaping][size]
        graph.replay()
        if size not in self._buffers:
            self._buffers[size] = [torch.empty_like(numbers, device="cpu", pin_memory=True) for _ in range(BUFFERS)]
        self._steps += 1
        copy, copied = self._buffers[size][self._steps % BUFFERS], torch.cuda.Event()
        copy.copy_(numbers, non_blocking=True)
        copied.record()

        def read() -> Report:
            copied.synchronize()
            return Report.of(copy.tolist(), size)

        return read


def _place(error: BaseException) -> str:
    """What was being run when an error came, outside of PyTorch, and what the error says."""
    while error.__context__ is not None:  # the end of a capture that has failed raises an error of its own
        error = error.__context__
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "/torch/" not in frame.filename]
    said = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return f"{frames[-1].filename}, line {frames[-1].lineno}, in {frames[-1].name}: {said}" if frames else said
