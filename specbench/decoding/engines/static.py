"""Steps of fixed shapes over memory that stays where it is, as a CUDA graph needs them, without a graph.

They run on any device, so that what a captured step computes can be tested on a CPU.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import ClassVar

from jaxtyping import Int64
from torch import Tensor

from specbench.core.checks import check_count
from specbench.core.conf import config_name
from specbench.core.errors import ConfigError
from specbench.decoding.engines.engine import DecodingEngine, ReadReport, Requirements, moves
from specbench.decoding.slots import Slots
from specbench.decoding.step import StepComponents, step
from specbench.decoding.step_result import StepReport
from specbench.decoding.stopwatch import Stopwatch
from specbench.sampling.batch import Batch

_MULTIPLE = 64  # capacities are rounded up to one, so that a text a little longer needs no new memory
_STOPS = 8  # likewise the ids that end a text


def rounded(capacity: int) -> int:
    """Returns the capacity that is allocated for this one."""
    return -(-capacity // _MULTIPLE) * _MULTIPLE


class StaticEngine(DecodingEngine):
    """The number of rows of a step is the smallest of ``batch_sizes`` that holds all requests; rows may be free.

    The host reads the report of a step after it has begun the next one, and so never waits for an idle device.

    Args:
        batch_sizes: None stands for the largest number of requests together and the powers of two below it.
    """

    name: ClassVar[str] = "static"
    lag: ClassVar[int] = 1
    halves: ClassVar[bool] = True  # whether steps are made for powers of two below the largest number too
    fixed: ClassVar[bool] = True  # Batch.fixed; no drafter may decide on the host then

    def __init__(self, batch_sizes: object = None, prompt_chunk: object = None):
        super().__init__(prompt_chunk)
        sizes = [] if batch_sizes is None else batch_sizes
        if isinstance(sizes, str) or not isinstance(sizes, Sequence):
            raise ConfigError("engine.batch_sizes", sizes, "not a list", "Give whole numbers, such as [1,8].")
        self.configured_sizes = tuple(sorted({check_count("engine.batch_sizes", size) for size in sizes}))

    def _attach(self, components: StepComponents, stopwatch: Stopwatch) -> None:
        super()._attach(components, stopwatch)
        self._most, self._capacity, self._stops, self._size = 0, 0, 0, 0
        self._slots: Slots | None = None
        self._allocations = 0  # of slots
        self._taken: set[int] = set()  # rows with a request

    def _check(self, required: Requirements) -> None:
        """See :class:`DecodingEngine`. The drafter must not work on the host."""
        super()._check(required)
        self._check_size(required.batch_size)
        drafter = required.drafter
        if drafter is not None and not (drafter.capturable or (drafter.takes_free_rows and not self.fixed)):
            problem = f"drafter={config_name('drafter', drafter)} decides on the host what is drafted"
            raise ConfigError("engine", self.name, problem, "Use engine=eager or auto, or drafter=model.")

    def reserve(self, requests: int, capacity: int, stops: int) -> None:
        self._check_size(requests)
        if requests > self._most or capacity > self._capacity or stops > self._stops:
            self._most = max(self._most, requests)
            self._capacity = max(self._capacity, rounded(capacity))
            self._stops = max(self._stops, -(-stops // _STOPS) * _STOPS)
            powers = {2**i for i in range(self._most.bit_length()) if 2**i <= self._most}
            self.batch_sizes = self.configured_sizes or tuple(sorted({*(powers if self.halves else ()), self._most}))
            self._make_room()

    def _check_size(self, requests: int) -> None:
        if self.configured_sizes and requests > self.configured_sizes[-1]:
            remedy = f"Add {requests} to it, or lower batch_size to {self.configured_sizes[-1]}."
            raise ConfigError(
                "engine.batch_sizes", list(self.configured_sizes), f"no place for {requests} requests", remedy
            )

    def start(self) -> None:
        self._taken.clear()
        self._prompts.clear()
        if self._slots is not None:
            self._slots.clear()
        for cache in self.components.caches:
            cache.start([], 0)

    def admit(self, batch: Batch, prompts: Sequence[Sequence[int]]) -> list[int]:
        self.reserve(len(self._taken) + len(batch), batch.tokens.shape[1], batch.stop_ids.shape[1])
        self._make_room()  # another decoder of the same models may have reallocated their caches
        free = [row for row in range(self.batch_sizes[-1]) if row not in self._taken]
        rows = free[: len(batch)]
        self._taken.update(rows)
        if self.prompt_chunk:
            batch = self._to_be_fed(batch, prompts, rows)
        else:
            self._place(prompts, rows)
        self._slots_now.put(self._tensor(rows), batch)
        self._show()
        return rows

    def step(self, longest: int) -> ReadReport:
        numbers, size = self._step_of(self._size), self._size
        return lambda: StepReport.unpacked(numbers.tolist(), size)

    def _step_of(self, size: int) -> Int64[Tensor, " n"]:
        """Takes a step of the leading rows and returns StepResult.packed()."""
        after, result = step(self._slots_now.leading(size), self.components)
        self._slots_now.take(after)
        return result.packed()

    @contextmanager
    def _trial(self) -> Generator[None]:
        """Takes back what steps inside have done to the requests and the caches."""
        batch = self._slots_now.batch
        states = [batch.tokens, batch.lengths, batch.finished]
        states += [state for cache in self.components.caches for state in cache.state]
        before = [state.clone() for state in states]
        yield
        for state, value in zip(states, before, strict=True):
            state.copy_(value)

    def _remove(self, rows: Sequence[int]) -> dict[int, int]:
        self._taken.difference_update(rows)
        moved: dict[int, int] = {}
        if self._taken and self._size_for(len(self._taken)) < self._size:
            moved = moves(sorted(self._taken))
            sources, targets = list(moved), list(moved.values())
            for cache in self.components.caches:
                cache.move(sources, targets)
            if moved:
                self._slots_now.move(self._tensor(sources), self._tensor(targets))
            self._prompts.move(moved)
            self._taken = set(range(len(self._taken)))
            self._show()
        return moved

    @property
    def layout(self) -> tuple[object, ...]:
        """Changes whenever a tensor that every step reads is allocated anew."""
        return self._allocations, *(cache.layout for cache in self.components.caches)

    @property
    def shaping(self) -> tuple[object, ...]:
        """The operations of a step on distributions: steps of one shaping and layout read the same memory."""
        params = self._slots_now.batch.params
        shaping = None if params.shaping is None else params.shaping.layout
        return params.truncates, tuple(chain for chain, _ in params.chains), shaping

    @property
    def _texts(self) -> Batch:
        return self._slots_now.batch

    @property
    def _slots_now(self) -> Slots:
        assert self._slots is not None, "admit first"
        return self._slots

    def _make_room(self) -> None:
        rows, capacity = self.batch_sizes[-1], self._capacity
        shape = (rows, capacity, self._stops)
        if self._slots is None or self._slots.shape != shape:
            grown, old = Slots(*shape, self._device, self.fixed), self._slots
            if old is not None and self._taken:
                index = self._tensor(sorted(self._taken))
                grown.put(index, old.batch.select(index))
            self._slots = grown
            self._allocations += 1
        for cache in self.components.caches:
            cache.reserve(rows, capacity)

    def _show(self) -> None:
        self._size = self._size_for(max(self._taken) + 1)
        for cache in self.components.caches:
            cache.show(self._size)

    def _size_for(self, rows: int) -> int:
        return next(size for size in self.batch_sizes if size >= rows)
