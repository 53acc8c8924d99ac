"""Draws from rows of logits on a CPU in C++ (cpu_rows.cpp), one operation in place of thirty.

Only a compiled step uses them, inside ``drawing()``, so that an eager step needs no compiler and never differs. The
plain twins are ``LogitRows.normalizer`` and :func:`specbench.sampling.inverse_cdf`; sums may differ by rounding.
"""

from __future__ import annotations

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from specbench.core.switch import Switch
from specbench.core.types import LogitRows

drawing = Switch()  # inside, samplers draw by the library; cpu_product.load() first
_NO_DRAW = torch.zeros(0, dtype=torch.float64)


def takes(rows: LogitRows) -> bool:
    """Returns whether the library draws from these rows: float32 on a CPU, without a mask, inside ``drawing()``."""
    logits = rows.logits
    plain = drawing.on and logits.is_cpu and logits.dtype == torch.float32 and rows.allowed is None
    return plain and logits.stride(1) == 1 and rows.temperature.dtype == rows.cutoff.dtype == torch.float64


def takes_weights(weights: Float64[Tensor, "n V"]) -> bool:
    """Returns whether :func:`inverse_cdf` takes these weights, inside ``drawing()``."""
    return drawing.on and weights.is_cpu and weights.dtype == torch.float64 and weights.stride(1) == 1


def draw(rows: LogitRows, u: Float64[Tensor, " n"]) -> tuple[Int64[Tensor, " n"], Float64[Tensor, " n"]]:
    """Returns the tokens and the normaliser of each row; see :func:`specbench.sampling.draw`."""
    return torch.ops.specbench_cpu.draw(rows.logits, rows.temperature, rows.cutoff, u)


def normalizer(rows: LogitRows) -> Float64[Tensor, " n"]:
    """Returns ``LogitRows.normalizer`` of each row."""
    return torch.ops.specbench_cpu.draw(rows.logits, rows.temperature, rows.cutoff, _NO_DRAW)[1]


def inverse_cdf(weights: Float64[Tensor, "n V"], u: Float64[Tensor, " n"]) -> Int64[Tensor, " n"]:
    """Returns an index for each row of weights; see :func:`specbench.sampling.inverse_cdf`."""
    return torch.ops.specbench_cpu.inverse_cdf(weights, u)
