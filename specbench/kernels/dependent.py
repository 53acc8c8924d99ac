"""Programmatic dependent launch: a kernel is set up on the GPU while the one in front of it still runs.

In a step of one request a kernel runs for a few microseconds, of which one or two go by until its programs have
started. NVIDIA GPUs from Hopper on can start them early: a kernel that is launched with ``launch_pdl`` starts once all
programs of the one in front have said that it may, or have ended, and itself waits where it needs what that one writes
(CUDA C++ Programming Guide, "Programmatic Dependent Launch and Synchronization"; PTX, griddepcontrol).

Two rules keep this free of races, whatever stands in front and behind. A kernel that is launched so touches no memory
before it has waited, and it lets the next one start only after that. So when a kernel starts, all that lies further
back than the one in front of it has ended, and kernels of torch.compile, which wait for the one in front alone, and
only where they read what it wrote, may stand between ours.
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
    """Until all that was launched before has ended and can be read: to be called first. EARLY: it was launched so."""
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
