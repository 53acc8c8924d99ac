"""Scratch memory of the kernels, kept between launches, and what CUDA graphs ask of it."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from specbench.core.errors import ArgumentError
from specbench.kernels.layout import Scratch


def captures(device: torch.device) -> bool:
    """Whether a CUDA graph is being captured, on the current stream."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def current_stream(device: torch.device) -> int:
    """Returns the handle of the device's current stream; 0 on a CPU."""
    return torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0


@dataclass
class OfGraphs:
    """Memory that launches inside CUDA graphs go on writing to when more is taken for later ones."""

    kept: list[object] = field(default_factory=list)
    used: bool = False  # whether a graph has what is in use now

    def use(self, device: torch.device) -> None:
        """Notes that the memory is used as it is."""
        self.used |= captures(device)

    def replace(self, memory: object) -> None:
        """Notes that other memory takes the place of this, which is kept if a graph has it."""
        if self.used:
            self.kept.append(memory)
        self.used = False


@dataclass
class Workspace:
    """Scratch memory of the verification kernel on one device, grown as needed.

    Launches that share a workspace must follow one another. A launch inside a CUDA graph uses the memory there was when
    it was captured: run it once beforehand with the largest batch, gamma and vocabulary. That memory is kept as long as
    the workspace, whatever later launches need, since the graph goes on writing to it.
    """

    cells: int = 0
    groups: int = 0
    slots: int = 0
    batch: int = 0
    _scratch: Scratch | None = field(default=None, repr=False)
    _of_graphs: OfGraphs = field(default_factory=OfGraphs, repr=False)

    def scratch(self, batch: int, gamma: int, tiles: int, groups: int, device: torch.device) -> Scratch:
        """Memory for ``batch`` requests of ``gamma`` drafted tokens; tiles a row, groups a request (powers of two).

        Raises:
            ArgumentError: more is needed while a CUDA graph is being captured.
        """
        needed = (batch * gamma * tiles, batch * groups, batch * gamma, batch)
        present = (self.cells, self.groups, self.slots, self.batch)
        if self._scratch is not None and self._scratch.total.device == device:
            if all(need <= size for need, size in zip(needed, present, strict=True)):
                self._of_graphs.use(device)
                return self._scratch
        if captures(device):
            raise ArgumentError("workspace: too small inside a CUDA graph capture; call verify once before it")
        cells, groups, slots, requests = map(max, needed, present)

        def empty(size: int, dtype: torch.dtype) -> Tensor:
            return torch.empty(size, dtype=dtype, device=device)

        scratch = Scratch(
            reference=empty(cells, torch.float32),
            total=empty(cells, torch.float32),
            group=empty(groups, torch.float32),
            place=empty(cells, torch.int32),
            form=empty(8 * slots, torch.float32),
            argmax=empty(slots, torch.int32),
            pi=empty(slots, torch.float64),
            scored=empty(requests, torch.int32).zero_(),
            emitted=empty(requests, torch.int32).zero_(),
            outcome=empty(requests, torch.int32).zero_(),
        )
        # Only now: if memory had run out above, less would be held than these sizes say.
        self._of_graphs.replace(self._scratch)
        self.cells, self.groups, self.slots, self.batch, self._scratch = cells, groups, slots, requests, scratch
        return scratch
