"""Each step as one CUDA graph: the GPU runs from draft to commit without the host. Short prompts are fed by others.

Each batch size and each way to shape distributions has a graph of its own; all share their memory. The graphs of the
last few ways are kept, since requests may come in any mix and each graph takes memory of the driver.
"""

from __future__ import annotations

import gc
import time
import traceback
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import ClassVar, TypeGuard, TypeVar

import torch
from jaxtyping import Int64
from torch import Tensor

from specbench.core.conf import config_name
from specbench.core.errors import ConfigError, ModelError
from specbench.decoding.engines.engine import ReadReport, Requirements
from specbench.decoding.engines.fixed_prompts import FixedPrompts, Pass
from specbench.decoding.engines.static import StaticEngine
from specbench.decoding.step import StepComponents
from specbench.decoding.step_result import StepReport
from specbench.decoding.stopwatch import Stopwatch
from specbench.models import CachedModel, Features, RowCache
from specbench.models.weights import local
from specbench.rules.verifier import capabilities
from specbench.sampling.batch import Batch

TRIALS = 2  # steps before a capture, which compile kernels and allocate memory
BUFFERS = 2  # on the host: one is read while the other is written
SHAPINGS = 16  # ways to shape distributions of which graphs are kept
Result = TypeVar("Result")
Captured = tuple[torch.cuda.CUDAGraph, Int64[Tensor, " n"]]  # a step, and the tensor of its StepResult.packed()


class GraphEngine(StaticEngine):
    """Captures its steps when the first request comes, the largest first; see StaticEngine."""

    name: ClassVar[str] = "graph"

    def _check(self, required: Requirements) -> None:
        """See StaticEngine. A GPU is needed too, and neither the verifier nor sampling may work on the host."""
        if required.device.type != "cuda":
            remedy = "Use engine=auto, or engine=static to see its steps elsewhere."
            raise ConfigError("engine", self.name, f"CUDA graphs need a GPU, and device is {required.device}", remedy)
        if (verifier := required.verifier) is not None:
            offered = capabilities(verifier)
            if not offered.takes_padded or not offered.limits.capturable:
                problem = f"verifier={config_name('verifier', verifier)} has to read its drafts on the host"
                raise ConfigError("engine", self.name, problem, "Use engine=eager, or verifier=fused or masked.")
        self._check_on_host(required.on_host)
        super()._check(required)

    def _check_on_host(self, on_host: str) -> None:
        if on_host:
            raise ConfigError("engine", self.name, f"{on_host} works on the host", "Use engine=auto or engine=eager.")

    def admit(self, batch: Batch, prompts: Sequence[Sequence[int]]) -> list[int]:
        """See StaticEngine. Raises ConfigError for requests with processors that work on the host."""
        self._check_on_host(batch.params.on_host)
        return super().admit(batch, prompts)

    def _attach(self, components: StepComponents, stopwatch: Stopwatch) -> None:
        super()._attach(components, stopwatch)
        self._graphs: dict[tuple[object, ...], dict[int, Captured]] = {}  # by shaping, last used last, and size
        self._of_layout: tuple[object, ...] = ()
        self._weights: dict[int, Tensor] = {}  # by address, those that graphs read
        self._passes: dict[int, object] = {}  # by id, the fixed passes of models, whose memory graphs read
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(self._device)
        self._buffers: dict[int, list[Tensor]] = {}
        self._steps = 0
        self._fixed_prompts = FixedPrompts()

    def _make_room(self) -> None:
        super()._make_room()
        if self.layout != self._of_layout:
            self._graphs.clear()
            self._fixed_prompts.forget()
            self._weights.clear()
            self._passes.clear()
            self._of_layout = self.layout
            # PyTorch does not reuse a pool whose graphs are all gone while one of their tensors is left.
            self._pool = torch.cuda.graph_pool_handle()

    def _show(self) -> None:
        super()._show()
        graphs = self._graphs.pop(self.shaping, None) or self._captured_all()
        self._graphs[self.shaping] = graphs
        if len(self._graphs) > SHAPINGS:
            del self._graphs[next(iter(self._graphs))]

    def _place(self, prompts: Sequence[Sequence[int]], rows: Sequence[int], capacity: int | None = None) -> None:
        pieces = [prompt[:-1] for prompt in prompts]
        if self._feeds_fixed(self.components.target, pieces):
            self._feed(pieces, rows, [0] * len(rows))
        else:
            super()._place(prompts, rows, capacity)

    def _feed(self, pieces: Sequence[Sequence[int]], rows: Sequence[int], first: Sequence[int]) -> None:
        for cache in self.components.caches:
            if self._feeds_fixed(cache, pieces) and not self._fixed_prompts.prepared(cache):
                with self._preparing():
                    self._fixed_prompts.prepare(cache, rows[0], first[0], self._captured_pass)
        super()._feed(pieces, rows, first)

    def _feed_cache(
        self, cache: RowCache, pieces: Sequence[Sequence[int]], rows: Sequence[int], first: Sequence[int]
    ) -> Features:
        if not self._feeds_fixed(cache, pieces):
            return super()._feed_cache(cache, pieces, rows, first)
        self._fixed_prompts.feed(cache, pieces, rows, first)
        return {}

    def _feeds_fixed(self, cache: RowCache, pieces: Sequence[Sequence[int]]) -> TypeGuard[CachedModel]:
        """Returns whether a cache is fed by captured passes, which return no hidden states."""
        return not self.components.features and self._fixed_prompts.takes(cache, pieces)

    def _captured_all(self) -> dict[int, Captured]:
        shown, graphs = self._size, {}
        with self._preparing():
            for size in sorted(self.batch_sizes, reverse=True):
                for cache in self.components.caches:
                    cache.show(size)
                graphs[size] = self._captured(size)
            for cache in self.components.caches:
                cache.show(shown)
        return graphs

    @contextmanager
    def _preparing(self) -> Generator[None]:
        began = time.perf_counter()
        yield
        torch.cuda.synchronize(self._device)
        self.preparation += time.perf_counter() - began

    @torch.inference_mode()
    def _captured(self, size: int) -> Captured:
        with self._trial():
            return self._capture(lambda: self._step_of(size), f"a step of {size} requests of {self._capacity} tokens")

    def _captured_pass(self, run: Pass, width: int) -> Pass:
        graph, _ = self._capture(run, f"a pass over {width} tokens of a prompt")
        return graph.replay

    def _capture(self, run: Callable[[], Result], what: str) -> tuple[torch.cuda.CUDAGraph, Result]:
        """Returns the graph of what runs, and what it returned while it was captured."""
        graph, device = torch.cuda.CUDAGraph(), self._device
        try:
            self._stream.wait_stream(torch.cuda.current_stream(device))
            with torch.cuda.stream(self._stream):
                for _ in range(TRIALS):
                    run()
            torch.cuda.current_stream(device).wait_stream(self._stream)
            # A thread of NCCL queries the GPU meanwhile, which a capture in mode "global" forbids.
            mode = "global" if self.components.target.compare_ranks is None else "thread_local"
            with (
                _not_collecting(),
                torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode=mode),
            ):
                result = run()
        except torch.OutOfMemoryError as error:
            raise ModelError(
                f"engine={self.name}: no memory for {what}. Lower batch_size or max_new_tokens, or use engine=eager."
            ) from error
        except RuntimeError as error:
            raise ModelError(
                f"engine={self.name}: {what} cannot be captured in a CUDA graph: {_place(error)}. Use engine=eager."
            ) from error
        # Another engine of the same models, or this one when it compiles again, may join their layers, which moves the
        # weights (extras/compiled/joined.py), and replace their passes.
        models = [cache for cache in self.components.caches if isinstance(cache, CachedModel)]
        weights = [local(weight).detach() for cached in models for weight in cached.model.parameters()]
        self._weights |= {weight.data_ptr(): weight for weight in weights}
        self._passes |= {id(cached.fixed_forward): cached.fixed_forward for cached in models}
        return graph, result

    def step(self, longest: int) -> ReadReport:
        size = self._size
        graph, numbers = self._graphs[self.shaping][size]
        graph.replay()
        if size not in self._buffers:
            self._buffers[size] = [torch.empty_like(numbers, device="cpu", pin_memory=True) for _ in range(BUFFERS)]
        self._steps += 1
        copy, copied = self._buffers[size][self._steps % BUFFERS], torch.cuda.Event()
        copy.copy_(numbers, non_blocking=True)
        copied.record()

        def read() -> StepReport:
            copied.synchronize()
            return StepReport.unpacked(copy.tolist(), size)

        return read


@contextmanager
def _not_collecting() -> Generator[None]:
    """Keeps Python from collecting cycles of references: to free another graph would end a capture."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _place(error: BaseException) -> str:
    """Returns the last line outside of PyTorch that ran when an error came, and the error's text."""
    while error.__context__ is not None:  # the end of a failed capture raises another error
        error = error.__context__
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "/torch/" not in frame.filename]
    text = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return f"{frames[-1].filename}, line {frames[-1].lineno}, in {frames[-1].name}: {text}" if frames else text
