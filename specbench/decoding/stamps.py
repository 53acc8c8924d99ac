"""Time stamps inside a step, by the clock of the device that runs it."""

from __future__ import annotations

import time

import torch
from jaxtyping import Int64
from torch import Tensor


class Stamps:
    """Nanoseconds, each stamped when the work before it is done.

    On a GPU a stamp is a kernel: nothing waits for it, and a CUDA graph can hold it. The time between two stamps there
    is the device's own, and includes its waiting for the host.
    """

    def __init__(self, count: int, device: torch.device):
        self._host: list[int] = []
        self._device = None if device.type == "cpu" else torch.zeros(count, dtype=torch.int64, device=device)
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
        """Returns the stamps, on the device."""
        return torch.tensor(self._host) if self._device is None else self._device
