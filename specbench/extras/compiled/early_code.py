"""Whether kernels that torch.compile wrote may start before the ones in front of them have ended.

A kernel that writes, or lets the next one start, before it has waited could be in the way of a kernel that still runs
(kernels/dependent.py). PyTorch looks for what each kernel needs of the one in front by the names of its buffers, and
promises nothing more. So what it wrote is read here.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator
from types import ModuleType

from specbench.core.errors import ModelError

_KERNEL = re.compile(r"^@triton_heuristics\.", re.MULTILINE)
_NAME = re.compile(r"^def (triton_\w+)\(", re.MULTILINE)
_EARLY = re.compile(r"['\"]launch_pdl['\"]: True")
_WAIT, _LAUNCH = "gdc_wait()", "gdc_launch_dependents()"
_WRITES = re.compile(r"\btl\.(store|atomic_\w+)\(")


def check() -> None:
    """Whether all kernels that torch.compile wrote in this process, and that start early, wait first.

    Raises:
        ModelError: one does not, or they cannot be looked at.
    """
    if problem := doubt(sources()):
        raise ModelError(problem)


def doubt(texts: Iterable[str]) -> str | None:
    """Why kernels in these texts should not start early; None if all that do wait first."""
    kernels = [kernel for text in texts for kernel in _KERNEL.split(text)[1:] if _EARLY.search(kernel)]
    for kernel in kernels:
        name = _NAME.search(kernel)
        if name is None:
            return "a kernel without a name"
        body = kernel[name.end() :]
        writes = _WRITES.search(body)
        acts = [place for place in (body.find(_LAUNCH), -1 if writes is None else writes.start()) if place >= 0]
        if not 0 <= body.find(_WAIT) < min(acts, default=len(body)):
            return f"{name[1]} does not wait"
    return None if kernels else "its code could not be looked at"


def sources() -> Iterator[str]:
    """The modules that torch.compile wrote and loaded; none if this PyTorch keeps no list of them."""
    from torch._inductor import codecache

    modules: list[ModuleType] = getattr(codecache.PyCodeCache, "modules", [])
    for module in list(modules):
        try:
            yield inspect.getsource(module)
        except (OSError, TypeError):  # its file is gone
            continue
