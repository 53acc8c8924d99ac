"""A proof for code made of plain tensor operations: they are run on whole intervals of the uniforms, not on points.

Each box of a model is handed over as it is: a uniform is a pair of tensors, the lowest and the highest number that it
can be there. An operation that is monotone in each of its elements, as IEEE 754 makes products, sums and roundings by
other numbers, maps such pairs to pairs; a comparison, or a search in sorted sums, that comes out alike at both ends
comes out so everywhere between. If the code's outcome is a plain tensor in the end, it is the outcome of the whole box,
and nothing can hide in it. Any operation that is not on the list below makes the attempt fail, as does code that takes
numbers out of tensors: that says nothing against the code.

What is proved is what the code does at this call: not that it does the same when it is called again, which is for
purity/hidden_inputs.py and for the draws.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from jaxtyping import Float64, Int64
from torch import Tensor
from torch.utils._pytree import tree_map

from specbench.core.rng import Stream, Streams
from specbench.exactness.enumeration.boxes import Model
from specbench.exactness.enumeration.locate import SAME
from specbench.exactness.steps import draw, follow
from specbench.exactness.streams import GivenStreams
from specbench.rules.verifier import Verifier, capabilities, malformed

# Operations that move elements about, or combine each with other numbers monotonously.
_MOVES = {
    "alias", "as_strided", "cat", "clone", "detach", "expand", "flatten", "gather", "index", "index_select", "permute",
    "repeat", "reshape", "select", "slice", "split", "split_with_sizes", "squeeze", "stack", "t", "transpose", "unbind",
    "unsqueeze", "view", "_unsafe_view", "_to_copy", "lift_fresh", "unfold", "where", "masked_select", "roll",
}  # fmt: skip
_MONOTONE = {
    "add", "ceil", "clamp", "clamp_max", "clamp_min", "div", "floor", "maximum", "minimum", "mul", "neg", "round",
    "rsub", "sub", "trunc",
}  # fmt: skip
_DECISIONS = {"lt", "le", "gt", "ge", "searchsorted", "bucketize"}


class NotProvableError(Exception):
    """An operation that cannot be run on intervals, or one whose outcome differs within one."""


class Interval(Tensor):
    """Numbers known to lie between ``low`` and ``high``, elementwise."""

    low: Tensor
    high: Tensor

    @staticmethod
    def __new__(cls, low: Tensor, high: Tensor) -> Interval:
        made = Tensor._make_wrapper_subclass(
            cls, low.shape, strides=low.stride(), dtype=low.dtype, device=low.device, requires_grad=False
        )
        made.low, made.high = low, high
        return made

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"Interval({self.low}, {self.high})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # ty: ignore
        name, kwargs = func.overloadpacket.__name__, kwargs or {}
        if name not in _MOVES | _MONOTONE | _DECISIONS or "out" in kwargs:
            raise NotProvableError(f"aten.{name} has no rule for intervals")
        intervals = [argument for argument in (*args, *kwargs.values()) if isinstance(argument, Interval)]
        if name in _MONOTONE | _DECISIONS and len(intervals) > 1:
            raise NotProvableError(f"aten.{name} of two uniforms")
        if name == "div" and isinstance(args[1], Interval):
            raise NotProvableError("aten.div by uniforms, which may be 0 between two ends")
        if name in ("searchsorted", "where") and isinstance(args[0], Interval):
            raise NotProvableError(f"aten.{name} with uniforms for its sums or its condition")
        at_low, at_high = (
            func(*tree_map(end, args), **tree_map(end, kwargs))
            for end in (
                lambda x: x.low if isinstance(x, Interval) else x,
                lambda x: x.high if isinstance(x, Interval) else x,
            )
        )
        if name in _DECISIONS:
            if not torch.equal(at_low, at_high):
                raise NotProvableError(f"aten.{name} comes out both ways in a box")
            return at_low
        return tree_map(_paired, at_low, at_high)


def _paired(at_low: Any, at_high: Any) -> Any:
    if not isinstance(at_low, Tensor):
        return at_low
    if not at_low.is_floating_point():
        raise NotProvableError("a uniform becomes a whole number")
    if not (at_low.isfinite().all() and at_high.isfinite().all()):
        raise NotProvableError("a uniform becomes infinite")
    return Interval(torch.minimum(at_low, at_high), torch.maximum(at_low, at_high))


@dataclasses.dataclass(frozen=True)
class IntervalStreams(Streams):
    """Streams whose uniforms are intervals. They have no others, from which code might take one number of each.

    Attributes:
        low, high: [streams, B, width].
    """

    low: Float64[Tensor, "streams B width"] = dataclasses.field(kw_only=True)
    high: Float64[Tensor, "streams B width"] = dataclasses.field(kw_only=True)

    def uniform(self, stream: Stream) -> Any:
        return Interval(self.low[stream].contiguous(), self.high[stream].contiguous())

    def select(self, requests: Int64[Tensor, " m"]) -> IntervalStreams:
        low, high = self.low[:, requests], self.high[:, requests]
        return IntervalStreams(self.seeds[requests], self.positions[requests], self.width, low=low, high=high)


def proved(verifier: Verifier, model: Model) -> bool:
    """Whether the code, run over whole boxes, gives in each what the model says.

    A margin of SAME on each side of each threshold is left out; the model's total variation has room for it.
    """
    fixture = model.fixture
    if capabilities(verifier).draft_tokens is not None:
        return False
    boxes, device = model.boxes, fixture.p.device
    narrow = boxes.high - boxes.low <= 4 * SAME
    low, high = (torch.where(narrow, boxes.middle, end) for end in (boxes.low + SAME, boxes.high - SAME))
    plain = GivenStreams.of(boxes.middle.to(device))
    drawn = draw(None, fixture, plain)
    streams = IntervalStreams(plain.seeds, plain.positions, plain.width, low=low.to(device), high=high.to(device))
    try:
        result = verifier.verify(drawn.draft, drawn.target, streams)
    except Exception:  # whatever code does with numbers that are none; the other parts say what is wrong with it
        return False
    if isinstance(result.token_ids, Interval) or malformed(result, len(boxes.owner), fixture.gamma + 1, device):
        return False
    return torch.equal(follow(drawn, result).visible.cpu(), model.tokens)
