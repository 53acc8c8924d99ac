"""Drawing a token from weights with one uniform."""

from __future__ import annotations

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from specbench.types import LogitRows


def inverse_cdf(weights: Float64[Tensor, "n V"], u: Float64[Tensor, " n"]) -> Int64[Tensor, " n"]:
    """The first index whose cumulative weight exceeds u times the total; weights need not be normalised.

    An index of weight 0 is never returned, since the cumulative sum does not grow there.
    """
    cumulative = weights.cumsum(dim=-1)
    total = cumulative[:, -1:].contiguous()
    index = torch.searchsorted(cumulative, u[:, None] * total, right=True)
    # u * total can round up to total; the first index that reaches the total is then the last of positive weight.
    last = torch.searchsorted(cumulative, total, right=False)
    # NaN weights would give an index past the end, which crashes whatever is fed with it before the caller's check of
    # LogitRows.finite() can name the row.
    return torch.minimum(index, last)[:, 0].clamp(max=weights.shape[-1] - 1)


def sample(rows: LogitRows, u: Float64[Tensor, " n"]) -> Int64[Tensor, " n"]:
    """One token a row; a greedy row yields its argmax whatever u is."""
    return inverse_cdf(rows.probs(), u)
