"""Code as boxes: for each draft, a product of intervals of its uniforms, in each of which it emits the same tokens."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from specbench.core.rng import Stream
from specbench.exactness.enumeration.paths import Tree
from specbench.exactness.fixtures import Fixture

MOST_CUTS, MOST_BOXES = 60, 100_000

Axis = tuple[int, int]  # stream, offset
Cuts = dict[Axis, list[float]]  # in order


@dataclass(frozen=True)
class Boxes:
    """Boxes of one or more drafts.

    Attributes:
        low, high: [streams, n, width], their corners.
        owner: [n], the draft.
        weight: [n], the probability of the draft times the box's share of its uniforms.
    """

    low: Float64[Tensor, "s n width"]
    high: Float64[Tensor, "s n width"]
    owner: Int64[Tensor, " n"]
    weight: Float64[Tensor, " n"]

    @property
    def middle(self) -> Float64[Tensor, "s n width"]:
        return (self.low + self.high) / 2


@dataclass(frozen=True)
class Grid:
    """The boxes of every draft of one length, numbered draft after draft.

    Attributes:
        tree: the drafts.
        cuts: of each draft, by axis.
        axes: that any draft has cuts on, in the order in which boxes are numbered, the last one fastest.
    """

    tree: Tree
    cuts: list[Cuts]
    axes: list[Axis]

    @staticmethod
    def of(tree: Tree, cuts: list[Cuts], most_boxes: float = MOST_BOXES) -> Grid | None:
        """None where there would be too many boxes."""
        cuts = [dict(axes) for axes in cuts]
        grid = Grid(tree, cuts, sorted({axis for cut in cuts for axis, values in cut.items() if values}))
        longest = max((len(values) for cut in cuts for values in cut.values()), default=0)
        boxes = grid.sizes.double().prod(dim=1).sum()
        return None if longest > MOST_CUTS or boxes > most_boxes else grid

    @cached_property
    def sizes(self) -> Int64[Tensor, "paths axes"]:
        """Intervals of each draft on each axis."""
        sizes = [[len(cuts.get(axis, [])) + 1 for axis in self.axes] for cuts in self.cuts]
        return torch.tensor(sizes, dtype=torch.int64).reshape(len(self.cuts), len(self.axes))

    @property
    def num_cuts(self) -> int:
        return int((self.sizes - 1).sum())

    @cached_property
    def _first(self) -> Int64[Tensor, " paths"]:
        boxes = self.sizes.prod(dim=1)
        return boxes.cumsum(0) - boxes

    @cached_property
    def _edges(self) -> Float64[Tensor, "axes paths cuts"]:
        """The cuts, filled up with infinity."""
        most = int(self.sizes.max()) - 1 if self.axes else 0
        edges = torch.full((len(self.axes), len(self.cuts), most), torch.inf, dtype=torch.float64)
        for a, axis in enumerate(self.axes):
            for i, cuts in enumerate(self.cuts):
                values = cuts.get(axis, [])
                edges[a, i, : len(values)] = torch.tensor(values, dtype=torch.float64)
        return edges

    def boxes(self, width: int) -> Boxes:
        """All of them."""
        low, high, owner, weight = zip(*(self._boxes(i, width) for i in range(len(self.cuts))), strict=True)
        return Boxes(torch.cat(low, dim=1), torch.cat(high, dim=1), torch.cat(owner), torch.cat(weight))

    def _boxes(self, i: int, width: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The values of Boxes of one draft."""
        path = self.tree.paths[i]
        low = torch.zeros((len(Stream), 1, width), dtype=torch.float64)
        high, weight = torch.ones_like(low), torch.ones(1, dtype=torch.float64)
        for offset, (start, end) in enumerate(path.intervals):
            low[Stream.DRAFT, :, offset], high[Stream.DRAFT, :, offset] = start, end
            weight = weight * (end - start)
        for stream, offset in self.axes:
            start, end = path.interval(stream, offset)
            edges = torch.tensor([start, *self.cuts[i].get((stream, offset), []), end], dtype=torch.float64)
            n, m = len(weight), len(edges) - 1
            low, high = (side.repeat_interleave(m, dim=1) for side in (low, high))
            low[stream, :, offset], high[stream, :, offset] = edges[:-1].repeat(n), edges[1:].repeat(n)
            weight = weight.repeat_interleave(m) * ((edges[1:] - edges[:-1]) / (end - start)).repeat(n)
        return low, high, torch.full((len(weight),), i), weight

    def box_of(self, given: Float64[Tensor, "s n width"]) -> Int64[Tensor, " n"]:
        """The number of the box that each point lies in."""
        device, owner = given.device, self.tree.path_of(given)
        edges, sizes = self._edges.to(device), self.sizes.to(device)
        index = torch.zeros_like(owner)
        for a, (stream, offset) in enumerate(self.axes):
            place = (given[stream, :, offset, None] >= edges[a][owner]).sum(dim=1)
            index = index * sizes[owner, a] + place
        return index + self._first.to(device)[owner]


@dataclass(frozen=True)
class Model:
    """What code does with drafts of one length, of requests of one set of sampling parameters.

    Attributes:
        fixture: of one variant.
        count: tokens drafted.
        grid: the boxes.
        tokens: [boxes, gamma + 1], what is emitted in each, PADDING behind it; PADDING alone where no rule could.
        tv: total variation of a step's joint from the target's, if the code does in each box what its middle does.
    """

    fixture: Fixture
    count: int
    grid: Grid
    tokens: Int64[Tensor, "boxes width"]
    tv: float

    def predict(self, given: Float64[Tensor, "s n offsets"]) -> Int64[Tensor, "n width"]:
        """What is emitted for each point, as in ``tokens``."""
        return self.tokens.to(given.device)[self.grid.box_of(given)]
