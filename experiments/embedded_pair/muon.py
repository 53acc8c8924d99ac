"""Muon for all matrices of a shape at once.

torch.optim.Muon starts some 25 kernels a matrix. With 140 small matrices the host then takes longer to start them than
a GPU takes for the whole step. Here as many kernels serve all matrices of a shape.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

NEWTON_SCHULZ = (3.4445, -4.775, 2.0315)  # coefficients of Jordan et al. (2024), as in torch.optim.Muon


def orthogonal(matrices: Tensor, steps: int = 5) -> Tensor:
    """Nearly orthogonal matrices, bfloat16, with the singular vectors of ``matrices`` [N, R, C]; the same shape."""
    a, b, c = NEWTON_SCHULZ
    x = matrices.bfloat16()
    if tall := x.shape[1] > x.shape[2]:
        x = x.mT
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


class StackedMuon(torch.optim.Optimizer):
    """torch.optim.Muon with ``adjust_lr_fn="match_rms_adamw"`` and Nesterov momentum, a stack of matrices a shape.

    Every parameter needs a gradient in every step.
    """

    def __init__(
        self, parameters: Iterable[Tensor], lr: float, weight_decay: float = 0.1, momentum: float = 0.95
    ) -> None:
        by_shape = groupby(sorted(parameters, key=lambda p: p.shape), key=lambda p: p.shape)
        groups: list[dict[str, Any]] = [{"params": list(some)} for _, some in by_shape]
        super().__init__(groups, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Changes the parameters by their gradients; there is no closure."""
        for group in self.param_groups:
            parameters, lr, momentum = group["params"], group["lr"], group["momentum"]
            gradients = torch.stack([p.grad for p in parameters])
            buffer = self.state[parameters[0]].setdefault("momentum_buffer", torch.zeros_like(gradients))
            buffer.lerp_(gradients, 1 - momentum)
            update = orthogonal(gradients.lerp(buffer, momentum)).float()
            update *= -lr * 0.2 * math.sqrt(max(parameters[0].shape))
            torch._foreach_mul_(parameters, 1 - lr * group["weight_decay"])
            torch._foreach_add_(parameters, list(update.unbind()))
