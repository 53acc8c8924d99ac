"""Probability integral transforms: what a token of a large vocabulary says about the distribution it was drawn from.

A token's values F(x-) + w p(x), with w uniform and F the target's distribution function along some order of the
vocabulary, are independent and uniform on (0, 1) if every token follows the target given what was emitted before it
(Rosenblatt, "Remarks on a multivariate transformation", 1952). Ordered by log p/q, whatever favours drafted tokens or
the residual moves the values to one side: on one row Kolmogorov's distance is the total variation of such a mistake.
Rows and positions are pooled here, so that mistakes of one of them are diluted; it is no bound on total variation.
"""

from __future__ import annotations

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from specbench.exactness.fixtures import Fixture
from specbench.exactness.steps import Steps


class PitTable:
    """The target's distribution function at every token of every row of a fixture.

    Args:
        fixture: on the device where values are wanted; rows of the last position, which have no q, are ordered by p.
    """

    def __init__(self, fixture: Fixture):
        self.p = fixture.p
        score = self.p.log()
        score[: len(fixture.q)] -= fixture.q.log()
        # 0/0: a token that neither has is never drawn. Half a step apart in rank is as good as any.
        order = score.nan_to_num(nan=0.0, posinf=torch.inf, neginf=-torch.inf).argsort(dim=1, stable=True)
        below = self.p.gather(1, order).cumsum(dim=1)
        below = torch.cat([torch.zeros_like(below[:, :1]), below[:, :-1]], 1)
        self.below = torch.empty_like(below).scatter_(1, order, below)

    def values(self, steps: Steps, generator: torch.Generator) -> Float64[Tensor, "B width"]:
        """One value a token; NaN where none was emitted."""
        w = torch.rand(steps.tokens.shape, generator=generator, dtype=torch.float64, device=steps.tokens.device)
        value = self.below[steps.rows, steps.tokens] + w * self.p[steps.rows, steps.tokens]
        return torch.where(steps.emitted, value, torch.nan).clamp(max=1 - 2.0**-53)


def first_and_last(values: Float64[Tensor, "B width"]) -> tuple[Float64[Tensor, " B"], Float64[Tensor, " B"]]:
    """The values of each step's first and last token."""
    last: Int64[Tensor, " B"] = (~values.isnan()).sum(dim=1) - 1
    return values[:, 0], values.gather(1, last.clamp(min=0)[:, None])[:, 0]
