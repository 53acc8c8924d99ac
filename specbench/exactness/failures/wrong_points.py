"""Where a model of code does not what the rule does that the code names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Int64
from torch import Tensor

from specbench.exactness.enumeration.boxes import Axis, Boxes, Model
from specbench.exactness.enumeration.injection import Point, expected_of
from specbench.rules.rule import Rule

FOR_THE_CAUSE = 300  # requests that a flawed verifier of the zoo has to get wrong in the same way
_EDGE = 1e-9  # of half a box: how far from its edge a point is put
_LEAST_SHARE = 1e-9  # of the probability; less of it is rounding
_HALVINGS = 40


@dataclass(frozen=True)
class WrongPoint:
    """A point at which a model of the code does not do what the rule does that it names.

    Attributes:
        share: probability of the points around that are wrong in the same way.
        beside: points next to these, some of which it may get right.
    """

    point: Point
    share: float
    beside: tuple[Point, ...]


def differences(rule: Rule, model: Model) -> Iterator[WrongPoint]:
    """Points in the boxes of a model that the rule answers otherwise, the heaviest first; if there is none, points
    between the thresholds of the two."""
    boxes = model.boxes
    middle = boxes.middle
    wanted = expected_of(rule, model.fixture, middle)
    wrong = (model.tokens != wanted).any(dim=1).nonzero()[:, 0]
    heaviest = wrong[boxes.weight[wrong].argsort(descending=True)][:FOR_THE_CAUSE]
    for b in heaviest.tolist():
        beside = tuple(Point(model.fixture, uniforms) for uniforms in _next_to(boxes, b, model.grid.axes))
        yield WrongPoint(Point(model.fixture, middle[:, b]), float(boxes.weight[b]), beside)
    if len(wrong) == 0:
        yield from between_thresholds(rule, model, boxes)


def _next_to(boxes: Boxes, b: int, axes: list[Axis]) -> Iterator[Tensor]:
    """Points outside of a box, half its width from each of its sides."""
    low, high = boxes.low[:, b], boxes.high[:, b]
    for stream, offset in axes:
        half = (high - low)[stream, offset] / 2
        for value in (low[stream, offset] - half, high[stream, offset] + half):
            if 0 <= value < 1:
                point = (low + high) / 2
                point[stream, offset] = value
                yield point


def between_thresholds(rule: Rule, model: Model, boxes: Boxes) -> Iterator[WrongPoint]:
    """Where a threshold of the code is near the rule's: points halfway from the one to the other."""

    def moved(axis: tuple[int, int], chosen: Int64[Tensor, " n"], edge: Tensor, part: Tensor | float) -> Tensor:
        """Middles moved to an edge on one axis, but for so much of the way."""
        stream, offset = axis
        points = middle[:, chosen]
        there = edge[stream, chosen, offset]
        points[stream, :, offset] = there + part * (points[stream, :, offset] - there)
        return points

    def wrong(axis: tuple[int, int], chosen: Int64[Tensor, " n"], edge: Tensor, part: Tensor | float) -> Tensor:
        points = moved(axis, chosen, edge, part)
        return (model.tokens[chosen] != expected_of(rule, model.fixture, points)).any(dim=1)

    middle = boxes.middle
    numbers = torch.arange(len(boxes.weight))
    for axis in model.grid.axes:
        for edge in (boxes.low, boxes.high):
            chosen = numbers[wrong(axis, numbers, edge, _EDGE)]
            if len(chosen) == 0:  # most edges: forty calls for nothing
                continue
            chosen = chosen[boxes.weight[chosen].argsort(descending=True)][:FOR_THE_CAUSE]
            low, high = torch.full((len(chosen),), _EDGE, dtype=torch.float64), torch.ones(len(chosen)).double()
            for _ in range(_HALVINGS):
                part = (low + high) / 2
                off = wrong(axis, chosen, edge, part)
                low, high = torch.where(off, part, low), torch.where(off, high, part)
            points, beside = (moved(axis, chosen, edge, part) for part in (low / 2, -low / 2))
            shares = boxes.weight[chosen] * low / 2
            for i in (shares > _LEAST_SHARE).nonzero()[:, 0].tolist():
                point, other = (Point(model.fixture, uniforms[:, i]) for uniforms in (points, beside))
                yield WrongPoint(point, float(shares[i]), (other,) if 0 <= other.given[axis[0], axis[1]] < 1 else ())
