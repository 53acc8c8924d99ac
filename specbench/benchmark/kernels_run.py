"""How many kernels a device runs in a piece of work, as NVIDIA's own profiling interface counts them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile


def kernels_run(device: torch.device, work: Callable[[], object]) -> int | None:
    """Runs work and counts its kernels, copies and fillings, those inside a CUDA graph one by one.

    On a CPU nothing is run, and there is no count.

    It takes seconds, and what it runs is slower than usual: nothing may be timed meanwhile.
    """
    if device.type != "cuda":
        return None
    torch.cuda.synchronize(device)
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as seen:
        work()
        torch.cuda.synchronize(device)
    return sum(event.device_type == DeviceType.CUDA for event in seen.events())
