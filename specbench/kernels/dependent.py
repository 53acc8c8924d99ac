"""Programmatic dependent launch: a kernel is set up on the GPU while the one in front of it still runs.

In a step of one request a kernel runs for a few microseconds, of which one or two go by until its programs have
started. NVIDIA GPUs from Hopper on can start them early: a kernel that is launched with ``launch_pdl`` starts once all
programs of the one in front have said that it may, or have ended, and itself waits where it needs what that one writes
(CUDA C++ Programming Guide, "Programmatic Dependent Launch and Synchronization"; PTX, griddepcontrol).

Two rules keep this free of races. Before it has waited, a kernel that is launched so reads at most what the kernel in
front does not write, such as weights, and writes nothing; and it lets the next one start only after that. So when a
kernel starts, all that lies further back than the one in front of it has ended.

Kernels of torch.compile may stand between ours. If one reads what the kernel in front wrote, it waits before that; if
not, it waits behind its first read (PyTorch 2.13, _inductor/codegen/triton.py). So each kernel that reads anything has
waited before it writes, ends or lets the next one start. A program that reads nothing may not wait at all, and the
kernel behind it could start too early. So what torch.compile wrote is read before it is used
(extras/compiled/early_code.py).
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

CAPABILITY = (9, 0)  # of the first GPUs that can


@functools.cache
def possible(device: torch.device) -> bool:
    """Whether kernels on a device can be launched so."""
    return (
        device.type == "cuda" and torch.version.hip is None and torch.cuda.get_device_capability(device) >= CAPABILITY
    )


def options(device: torch.device) -> dict[str, Any]:
    """What a launch of a kernel with EARLY is given beside its arguments."""
    return {"EARLY": True, "launch_pdl": True} if possible(device) else {"EARLY": False}


@triton.jit
def wait(EARLY: tl.constexpr):
    """Waits until all that was launched before has ended and can be read.

    EARLY: whether the kernel was launched with ``launch_pdl``.
    """
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
