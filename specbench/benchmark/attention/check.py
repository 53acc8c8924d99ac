"""Is what a way gives right? Held to the plain twin in float64, request by request, before it is timed and after.

The error of a token and head is the length of the difference over the length of what is expected. So it is relative:
the more keys, the smaller are the weighted means, and a fixed bound would let any result of a long context pass.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from specbench.benchmark.attention.cases import AttentionCase, AttentionSpec
from specbench.models import plain_attention

TOLERANCE = {"float32": 2e-5, "float16": 2e-3, "bfloat16": 2e-2}  # rounding is half of it or less
_WITH_SOFTCAP = 12.0  # times that: the plain twin rounds products to the dtype, up to the softcap and in an exponent


def tolerance(spec: AttentionSpec) -> float:
    """The largest error that rounding explains; one key too many or too few makes several times as much."""
    return TOLERANCE[spec.dtype] * (1.0 if spec.softcap is None else _WITH_SOFTCAP)


def expected(case: AttentionCase) -> Float[Tensor, "B n heads size"]:
    """What the plain twin gives in float64, each request alone with no more of the cache than is its own."""
    alone = []
    for b, length in enumerate(case.lengths.tolist()):
        one = (case.query[b : b + 1], case.key[b : b + 1, :, :length], case.value[b : b + 1, :, :length])
        alone.append(plain_attention.attend(*(each.double() for each in one), case.places[b : b + 1], **case.options))
    return torch.cat(alone)


def largest_error(got: Tensor, right: Float[Tensor, "B n heads size"]) -> float:
    """The largest error of a token and head; infinite for another shape, and for what is no number."""
    if got.shape != right.shape:
        return math.inf
    errors = (got.double() - right).norm(dim=3) / right.norm(dim=3)
    return float(errors.nan_to_num(nan=math.inf).max())
