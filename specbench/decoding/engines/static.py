"""Steps of fixed shapes over memory that stays where it is, as a CUDA graph wants them, without one.

It runs wherever PyTorch does, so that what a captured step computes can be looked at, and tested, on a CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from jaxtyping import Int64
from torch import Tensor

from specbench.core.checks import check_count
from specbench.core.conf import config_name
from specbench.core.errors import ConfigError
from specbench.decoding.engines.base import DecodingEngine, Reading, moves
from specbench.decoding.slots import Slots
from specbench.decoding.step import Parts, Report, step
from specbench.decoding.stopwatch import Stopwatch
from specbench.drafters import Drafter
from specbench.sampling.batch import Batch
from specbench.verifiers import Verifier

_MULTIPLE = 64  # capacities are rounded up to one, so that a text a little longer needs no new memory
_STOPS = 8  # likewise the ids that end a text


class StaticEngine(DecodingEngine):
    """A step is of as many rows as the smallest of ``batch_sizes`` that holds all requests; rows may be free.

    The host reads what happened one step behind, and so waits for none.

    Args:
        batch_sizes: None makes it the powers of two below the most requests side by side, and that number.
        prompt_chunk: see :class:`DecodingEngine`.
    """

    name: ClassVar[str] = "static"
    lag: ClassVar[int] = 1

    def __init__(self, batch_sizes: object = None, prompt_chunk: object = None):
        super().__init__(prompt_chunk)
        given = [] if batch_sizes is None else batch_sizes
        if isinstance(given, str) or not isinstance(given, Sequence):
            raise ConfigError("engine.batch_sizes", given, "not a list", "Give whole numbers, such as [1,8].")
        self.asked = tuple(sorted({check_count("engine.batch_sizes", size) for size in given}))

    def _attach(self, parts: Parts, stopwatch: Stopwatch) -> None:
        super()._attach(parts, stopwatch)
        self._most, self._capacity, self._stops, self._size = 0, 0, 0, 0
        self._slots: Slots | None = None
        self._made = 0  # slots so far
        self._taken: set[int] = set()  # rows with requests

    def check(
        self,
        device: torch.device,
        drafter: Drafter | None,
        verifier: Verifier | None,
        batch_size: int = 1,
        on_host: str = "",
    ) -> None:
        """See :class:`DecodingEngine`: what a drafter keeps has to follow requests from row to row."""
        super().check(device, drafter, verifier, batch_size, on_host)
        self._check_size(batch_size)
        if drafter is not None and not drafter.capturable:
            problem = f"drafter={config_name('drafter', drafter)} reads its drafts on the host, which no graph can hold"
            raise ConfigError("engine", self.name, problem, "Use engine=eager or auto, or drafter=model.")
        if drafter is not None and type(drafter).start is not Drafter.start and type(drafter).place is Drafter.place:
            problem = f"drafter={config_name('drafter', drafter)} keeps something for each request, and has no place()"
            raise ConfigError("engine", self.name, problem, "Use engine=eager, or give it place() and move().")

    def reserve(self, requests: int, capacity: int, stops: int) -> None:
        """See :class:`DecodingEngine`."""
        self._check_size(requests)
        if requests > self._most or capacity > self._capacity or stops > self._stops:
            self._most = max(self._most, requests)
            self._capacity = max(self._capacity, -(-capacity // _MULTIPLE) * _MULTIPLE)
            self._stops = max(self._stops, -(-stops // _STOPS) * _STOPS)
            powers = {2**i for i in range(self._most.bit_length()) if 2**i <= self._most}
            self.batch_sizes = self.asked or tuple(sorted({*self._sizes(powers), self._most}))
            self._make_room()

    def _check_size(self, requests: int) -> None:
        if self.asked and requests > self.asked[-1]:
            remedy = f"Add {requests} to it, or lower batch_size to {self.asked[-1]}."
            raise ConfigError("engine.batch_sizes", list(self.asked), f"no place for {requests} requests", remedy)

    def _sizes(self, powers: set[int]) -> set[int]:
        return powers

    def start(self) -> None:
        """See :class:`DecodingEngine`."""
        self._taken.clear()
        self._prompts.clear()
        if self._slots is not None:
            self._slots.clear()
        for each in self.followers.values():
            each.start([], 0)

    def admit(self, batch: Batch, prompts: Sequence[Sequence[int]]) -> list[int]:
        """See :class:`DecodingEngine`."""
        self.reserve(len(self._taken) + len(batch), batch.tokens.shape[1], batch.stop_ids.shape[1])
        self._make_room()  # another decoder of the same models may have grown them
        free = [row for row in range(self.batch_sizes[-1]) if row not in self._taken]
        rows = free[: len(batch)]
        self._taken.update(rows)
        if self.prompt_chunk:
            batch = self._to_be_fed(batch, prompts, rows)
        else:
            for name, each in self.followers.items():
                with self.stopwatch(name):
                    each.place(prompts, rows)
        self._slots_now.put(self._index(rows), batch)
        self._show()
        return rows

    def step(self) -> Reading:
        """See :class:`DecodingEngine`."""
        numbers, size = self._step_of(self._size), self._size
        return lambda: Report.of(numbers.tolist(), size)

    def _step_of(self, size: int) -> Int64[Tensor, " n"]:
        """A step of the leading rows."""
        after, happened = step(self._slots_now.leading(size), self.parts)
        self._slots_now.take(after)
        return happened.packed()

    def retire(self, rows: Sequence[int]) -> dict[int, int]:
        """See :class:`DecodingEngine`."""
        self._taken.difference_update(rows)
        moved: dict[int, int] = {}
        if self._taken and self._size_for(len(self._taken)) < self._size:
            moved = moves(sorted(self._taken))
            sources, targets = list(moved), list(moved.values())
            for each in self.followers.values():
                each.move(sources, targets)
            if moved:
                self._slots_now.move(self._index(sources), self._index(targets))
            self._prompts.move(moved)
            self._taken = set(range(len(self._taken)))
            self._show()
        return moved

    @property
    def layout(self) -> tuple[object, ...]:
        """Changes whenever memory that every step reads is allocated anew."""
        drafter = self.parts.drafter
        own = None if drafter is None else drafter.own
        engines = (engine for engine in (self.parts.target, own) if engine is not None)
        return self._made, 0 if drafter is None else drafter.layout, *(engine.layout for engine in engines)

    @property
    def shaping(self) -> tuple[object, ...]:
        """What a step does to distributions: one that does the same, of the same layout, reads the same memory."""
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
            grown, old = Slots(*shape, self.parts.target.device), self._slots
            if old is not None and self._taken:
                index = self._index(sorted(self._taken))
                grown.put(index, old.batch.select(index))
            self._slots = grown
            self._made += 1
        for each in self.followers.values():
            each.reserve(rows, capacity)

    def _show(self) -> None:
        self._size = self._size_for(max(self._taken) + 1)
        for each in self.followers.values():
            each.show(self._size, fixed=True)

    def _size_for(self, rows: int) -> int:
        return next(size for size in self.batch_sizes if size >= rows)

    def _index(self, rows: Sequence[int]) -> Int64[Tensor, " m"]:
        return torch.tensor(list(rows), dtype=torch.int64, device=self.parts.target.device)
