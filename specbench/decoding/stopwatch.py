"""The time of a decoding run by phase: stamps inside a step, and a stopwatch that adds up phases."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from itertools import pairwise

import torch
from jaxtyping import Int64
from torch import Tensor

MOST_EVENTS = 1000  # feedings of prompts whose times were not read


class Stamps:
    """Nanoseconds by the clock of the device, each stamped when the work before it is done.

    On a GPU a stamp is a kernel: nothing waits for it, and a CUDA graph can hold it. The time between two stamps there
    is the device's own, and includes its waiting for the host.
    """

    def __init__(self, count: int, device: torch.device):
        self._host: list[int] = []
        self._device = None if device.type == "cpu" else torch.empty(count, dtype=torch.int64, device=device)
        self._marked = 0

    def mark(self) -> None:
        """Stamps the next point."""
        if self._device is None:
            self._host.append(time.perf_counter_ns())
            return
        from specbench.kernels.stamp import stamp

        stamp(self._device[self._marked :])
        self._marked += 1

    def tensor(self) -> Int64[Tensor, " count"]:
        return torch.tensor(self._host) if self._device is None else self._device


class Stopwatch:
    """Adds up seconds by phase. Nothing waits for a GPU until they are read.

    Args:
        device: of the work. On a GPU prompts are timed between two events of its stream, as steps are between stamps.
    """

    def __init__(self, device: torch.device):
        self._device = device
        self.clear()

    def clear(self) -> None:
        """Forgets all times so far, such as those of warming up."""
        self._seconds: dict[str, float] = defaultdict(float)
        self._of_prompts = 0.0
        self._under_way: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []

    @property
    def seconds(self) -> dict[str, float]:
        """By phase, prompts included."""
        self._read()
        return dict(self._seconds)

    @property
    def prompt_seconds(self) -> float:
        """Of all phases, spent on feeding prompts."""
        self._read()
        return self._of_prompts

    @contextmanager
    def feeding(self, phase: str) -> Generator[None]:
        """Times the feeding of prompts inside, as a part of this phase."""
        if self._device.type == "cpu":
            started = time.perf_counter()
            yield
            self._add_prompts(phase, time.perf_counter() - started)
            return
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        began.record(torch.cuda.current_stream(self._device))
        yield
        ended.record(torch.cuda.current_stream(self._device))
        self._under_way.append((phase, began, ended))
        if len(self._under_way) == MOST_EVENTS:
            self._read()

    def add(self, phases: Iterable[str], stamps: Iterable[int]) -> None:
        """Adds the phases between stamps, of which there is one more than phases."""
        for phase, (begin, end) in zip(phases, pairwise(stamps), strict=True):
            self._seconds[phase] += (end - begin) * 1e-9

    def _read(self) -> None:
        for phase, began, ended in self._under_way:
            ended.synchronize()
            self._add_prompts(phase, began.elapsed_time(ended) * 1e-3)
        self._under_way.clear()

    def _add_prompts(self, phase: str, seconds: float) -> None:
        self._seconds[phase] += seconds
        self._of_prompts += seconds
