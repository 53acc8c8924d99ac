"""What attention is timed on, made-up caches whose requests differ in length, and the check of its results.

A cache of random numbers would hide mistakes: over 8,192 keys of about the same weight, one key too many moves the
result by no more than rounding in 16 bits does. So the values at the edges of what is seen, on both sides, are large: a
query that sees one key too many or too few gives something else.

Results are held to the plain twin in float64, request by request. The error of a token and head is the length of the
difference over the length of what is expected: the more keys, the smaller are the weighted means, so that a fixed bound
would let any result of a long context pass.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from specbench.core import trees
from specbench.core.machine.devices import DTYPES
from specbench.core.machine.provenance import request_seed
from specbench.models import plain_attention
from specbench.models.plain_attention import places, seen

TOLERANCE = {"float32": 2e-5, "float16": 2e-3, "bfloat16": 2e-2}  # rounding is half of it or less
_WITH_SOFTCAP = 12.0  # times that: the plain twin rounds products to the dtype, up to the softcap and in an exponent
_OF_SOFTCAP = 0.2  # products of size 1 would be far below the usual caps, which would then change nothing


@dataclass(frozen=True)
class AttentionSpec:
    """One setting to time.

    Attributes:
        batch_size: requests.
        gamma: tokens drafted by each request; attention sees one more, the last of its text.
        context: places of the cache that the longest request fills, its new tokens among them.
        shortest: the least length, as a share of ``context``.
        heads: of queries.
        key_heads: of keys, and of values.
        head_size: numbers a head.
        window: tokens that a query sees, itself among them; None sees all.
        softcap: the bound of scaled products, as in Gemma 2; None is none.
        tree: each new token is followed by two others, where a chain has one.
        dtype: by its name.
    """

    batch_size: int
    gamma: int
    context: int
    shortest: float
    heads: int
    key_heads: int
    head_size: int
    window: int | None
    softcap: float | None
    tree: bool
    dtype: str

    @property
    def tokens(self) -> int:
        """New tokens of a request."""
        return self.gamma + 1

    @property
    def tolerance(self) -> float:
        """The largest error that rounding explains; one key too many or too few makes several times as much."""
        return TOLERANCE[self.dtype] * (1.0 if self.softcap is None else _WITH_SOFTCAP)

    @property
    def least(self) -> int:
        """The fewest tokens of a request, its new ones among them."""
        return math.ceil(self.shortest * self.context)


@dataclass(frozen=True)
class AttentionCase:
    """What one call of attention is given.

    Attributes:
        query: of the new tokens.
        key, value: the cache, whose leading places a request fills; what stands behind is left over.
        lengths: tokens of each request, the new ones among them.
        places: where the new tokens stand (models/plain_attention.py).
        mask: which places each new token sees, for ways that want it so.
    """

    spec: AttentionSpec
    query: Float[Tensor, "B heads n size"]
    key: Float[Tensor, "B key_heads context size"]
    value: Float[Tensor, "B key_heads context size"]
    lengths: Int64[Tensor, " B"]
    places: Int64[Tensor, "B 1 n fields"]
    mask: Bool[Tensor, "B 1 n context"]

    @property
    def scale(self) -> float:
        """The factor of the products of queries and keys."""
        return self.spec.head_size**-0.5

    @property
    def options(self) -> dict[str, Any]:
        """What attention by places is given beside the tensors (models/plain_attention.py)."""
        return {"scale": self.scale, "window": self.spec.window, "softcap": self.spec.softcap}

    @property
    def floor_bytes(self) -> int:
        """Bytes of the keys and values that any of a request's new tokens sees, each read once."""
        places_read = int(self.mask.any(dim=2).sum())
        return 2 * places_read * self.spec.key_heads * self.spec.head_size * self.key.element_size()


def make_case(spec: AttentionSpec, seed: int, number: int, device: torch.device) -> AttentionCase:
    """A case's numbers and lengths; the same for the same seed, number and kind of device.

    Args:
        number: tells several cases of one spec apart.
    """
    name = "/".join(str(part) for part in (*dataclasses.astuple(spec), number))
    generator = torch.Generator(device).manual_seed(request_seed(seed, name))
    batch, n = spec.batch_size, spec.tokens
    lengths = torch.randint(spec.least, spec.context + 1, (batch,), generator=generator, device=device)
    lengths[-1] = spec.context  # all places are some request's
    at = _places(spec, lengths - n)
    mask = seen(at, spec.context, spec.window)

    def randn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=device, dtype=DTYPES[spec.dtype])

    query = randn(batch, n, spec.heads, spec.head_size).transpose(1, 2)  # as a layer's product leaves it
    if spec.softcap is not None:
        query *= max(1.0, _OF_SOFTCAP * spec.softcap)
    key, value = (randn(batch, spec.key_heads, spec.context, spec.head_size) for _ in range(2))
    large = math.sqrt(min(spec.context, spec.window or spec.context))
    value *= torch.where(_edges(mask), large, 1.0)[:, None, :, None].to(value.dtype)
    return AttentionCase(spec, query, key, value, lengths, at, mask[:, None])


def _places(spec: AttentionSpec, cached: Int64[Tensor, " B"]) -> Int64[Tensor, "B 1 n fields"]:
    n, device = spec.tokens, cached.device
    i = torch.arange(n, device=device)
    if not spec.tree:
        return places(cached, cached[:, None] + i)
    parents = (i - 1).div(2, rounding_mode="floor")[None]
    ancestors = trees.ancestors(parents, n.bit_length()).expand(spec.batch_size, n, n)
    return places(cached, cached[:, None] + trees.depths(ancestors) - 1, ancestors)


def _edges(mask: Bool[Tensor, "B n context"]) -> Bool[Tensor, "B context"]:
    """The first place, and every place that a token sees beside one that it does not see, or the other way round."""
    changes = mask[:, :, 1:] != mask[:, :, :-1]
    either = torch.nn.functional.pad(changes, (1, 0)) | torch.nn.functional.pad(changes, (0, 1))
    edges = either.any(dim=1)
    edges[:, 0] = True
    return edges


def expected(case: AttentionCase) -> Float[Tensor, "B n heads size"]:
    """What the plain twin gives in float64, each request alone with no more of the cache than is its own."""
    alone = []
    for b, length in enumerate(case.lengths.tolist()):
        one = (case.query[b : b + 1], case.key[b : b + 1, :, :length], case.value[b : b + 1, :, :length])
        alone.append(
            plain_attention.attend(*(tensor.double() for tensor in one), case.places[b : b + 1], **case.options)
        )
    return torch.cat(alone)


def largest_error(got: Tensor, right: Float[Tensor, "B n heads size"]) -> float:
    """The largest error of a token and head; infinite for another shape, and for what is no number."""
    if got.shape != right.shape:
        return math.inf
    errors = (got.double() - right).norm(dim=3) / right.norm(dim=3)
    return float(errors.nan_to_num(nan=math.inf).max())
