"""The time of a decoding run by phase: stamps inside a step, and a stopwatch that adds up phases."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from itertools import pairwise

import torch
from jaxtyping import Int64
from torch import Tensor


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
    """Adds up seconds by phase.

    Args:
        synchronize: called before the clock is read, so that work queued on a GPU counts for the phase that queued it.
    """

    def __init__(self, synchronize: Callable[[], None]):
        self._synchronize = synchronize
        self.seconds: dict[str, float] = defaultdict(float)

    @contextmanager
    def __call__(self, phase: str) -> Generator[None]:
        self._synchronize()
        started = time.perf_counter()
        yield
        self._synchronize()
        self.seconds[phase] += time.perf_counter() - started

    def add(self, phases: Iterable[str], stamps: Iterable[int]) -> None:
        """Adds the phases between stamps, of which there is one more than phases."""
        for phase, (begin, end) in zip(phases, pairwise(stamps), strict=True):
            self.seconds[phase] += (end - begin) * 1e-9
