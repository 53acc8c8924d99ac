"""Larger tensors around those of a launch, whose outsides would show in its tokens if they were read."""

import torch

from specbench.kernels import launch
from specbench.kernels.layout import Scratch
from tests.helpers.kernel_cases import DEVICE

MARGIN = 40  # elements or rows around each tensor: more than a wild count leads a request's lanes astray
ABSURD = 2**40 + 12345
COUNTERS = ("scored", "emitted", "outcome")  # 0 between launches


class Surroundings:
    """Larger tensors around those of a launch, and whether anything was written there."""

    def __init__(self) -> None:
        self.inside: list[torch.Tensor] = []
        self._held: list[tuple[str, torch.Tensor, torch.Tensor]] = []

    def around(self, name: str, tensor: torch.Tensor, outside: float) -> torch.Tensor:
        """A copy of a one-dimensional tensor with MARGIN elements of ``outside`` before and behind it."""
        wide = torch.full((len(tensor) + 2 * MARGIN,), outside, dtype=tensor.dtype, device=tensor.device)
        return self._hold(name, wide, wide[MARGIN : MARGIN + len(tensor)], tensor)

    def around_rows(self, name: str, logits: torch.Tensor, beside: float) -> torch.Tensor:
        """A copy of logits among rows of NaN, each row between columns of ``beside``."""
        n, vocabulary = logits.shape
        wide = torch.full((n + 2 * MARGIN, vocabulary + 2 * MARGIN), torch.nan, dtype=logits.dtype, device=DEVICE)
        wide[MARGIN : MARGIN + n] = beside
        return self._hold(name, wide, wide[MARGIN : MARGIN + n, MARGIN : MARGIN + vocabulary], logits)

    def _hold(self, name: str, wide: torch.Tensor, inside: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
        self._held.append((name, inside, wide.clone()))
        self.inside.append(inside.copy_(tensor))
        return inside

    def assert_untouched(self) -> None:
        for name, inside, before in self._held:
            now = torch.empty_like(before).set_(inside.untyped_storage(), 0, before.shape, before.stride())
            before.as_strided(inside.shape, inside.stride(), inside.storage_offset()).copy_(inside)
            assert torch.equal(now.nan_to_num(7.0), before.nan_to_num(7.0)), f"something was written around {name}"


class Guarded(launch.Workspace):
    """Scratch memory with surroundings, poisoned inside but for the counters."""

    def scratch(self, *args: object) -> Scratch:
        previous = self._scratch
        scratch = super().scratch(*args)
        if scratch is not previous:
            self.surroundings, parts = Surroundings(), {}
            for name, tensor in scratch._asdict().items():
                poison = torch.nan if tensor.is_floating_point() else ABSURD % 2**31
                parts[name] = self.surroundings.around(name, tensor.fill_(0 if name in COUNTERS else poison), poison)
            self._scratch = Scratch(**parts)
        return self._scratch

    def assert_counters_are_0(self) -> None:
        for name in COUNTERS:
            assert not getattr(self._scratch, name).any(), f"{name} is left at {getattr(self._scratch, name).tolist()}"
