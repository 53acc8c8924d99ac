"""Code as boxes: for each draft, a product of intervals of its uniforms, in each of which it emits the same tokens.

A draft is itself such a product: of the intervals of the DRAFT uniforms that yield its tokens. The thresholds of the
code divide it further.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from specbench.core.rng import Stream
from specbench.exactness import guard
from specbench.exactness.fixtures import Fixture
from specbench.rules.verifier import Verifier, capabilities

MOST_CUTS, MOST_BOXES = 60, 100_000
_BISECTIONS = 50
_MOST_PATHS = 1000

Piece = tuple[float, float]
Axis = tuple[int, int]  # stream, offset
Cuts = dict[Axis, list[float]]  # in order


@dataclass(frozen=True)
class DraftIntervals:
    """A draft as the intervals of the DRAFT uniforms that yield it."""

    intervals: tuple[Piece, ...] = ()
    state: int = 0
    tokens: tuple[int, ...] = ()

    def interval(self, stream: int, offset: int) -> Piece:
        """Where a uniform may lie without changing the draft."""
        drawn = stream == Stream.DRAFT and offset < len(self.intervals)
        return self.intervals[offset] if drawn else (0.0, 1.0)


@dataclass(frozen=True)
class IntervalTree:
    """Every draft of a class of requests.

    Attributes:
        ends: for each drafted token, [nodes, most]: where the intervals of each node end, but for its last one.
        children: likewise, [nodes]: the node behind its first interval, and behind the next the next one. Those of the
            last token are the paths' numbers.
    """

    paths: list[DraftIntervals]
    ends: list[Float64[Tensor, "_ _"]]
    children: list[Int64[Tensor, " _"]]

    @staticmethod
    def of(verifier: Verifier, fixture: Fixture) -> IntervalTree | None:
        """None where the verifier's own sampler has too many intervals, or there are too many drafts."""
        paths, ends, children = [DraftIntervals()], [], []
        for i in range(fixture.count):
            by_node = [_pieces(verifier, fixture, fixture.first_row[i] + path.state) for path in paths]
            known = [pieces for pieces in by_node if pieces is not None]
            if len(known) < len(by_node) or sum(map(len, known)) > _MOST_PATHS:
                return None
            ends.append(_padded([[high for (_, high), _ in pieces[:-1]] for pieces in known]))
            lengths = torch.tensor([len(pieces) for pieces in known])
            children.append(lengths.cumsum(0) - lengths)
            longer: list[DraftIntervals] = []
            for path, pieces in zip(paths, known, strict=True):
                for piece, token in pieces:
                    state = int(fixture.advance(i, torch.tensor(path.state), torch.tensor(token)))
                    longer.append(DraftIntervals((*path.intervals, piece), state, (*path.tokens, token)))
            paths = longer
        return IntervalTree(paths, ends, children)

    def path_of(self, given: Float64[Tensor, "s n width"]) -> Int64[Tensor, " n"]:
        """The number of the draft that each point yields."""
        node = torch.zeros(given.shape[1], dtype=torch.int64, device=given.device)
        for i, (end, child) in enumerate(zip(self.ends, self.children, strict=True)):
            place = (given[Stream.DRAFT, :, i, None] >= end.to(node.device)[node]).sum(dim=1)
            node = child.to(node.device)[node] + place
        return node


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
    """The boxes of every draft of a class of requests, numbered draft after draft.

    Attributes:
        cuts: of each draft, by axis.
        axes: that any draft has cuts on, in the order in which boxes are numbered, the last one fastest.
    """

    tree: IntervalTree
    cuts: list[Cuts]
    axes: list[Axis]

    @staticmethod
    def of(tree: IntervalTree, cuts: list[Cuts], most_boxes: float = MOST_BOXES) -> Grid | None:
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

    @cached_property
    def _first(self) -> Int64[Tensor, " paths"]:
        boxes = self.sizes.prod(dim=1)
        return boxes.cumsum(0) - boxes

    @cached_property
    def _edges(self) -> list[Float64[Tensor, "paths _"]]:
        """The cuts on each axis."""
        return [_padded([cuts.get(axis, []) for cuts in self.cuts]) for axis in self.axes]

    def boxes(self, width: int) -> Boxes:
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
        sizes = self.sizes.to(device)
        index = torch.zeros_like(owner)
        for a, ((stream, offset), edges) in enumerate(zip(self.axes, self._edges, strict=True)):
            place = (given[stream, :, offset, None] >= edges.to(device)[owner]).sum(dim=1)
            index = index * sizes[owner, a] + place
        return index + self._first.to(device)[owner]


@dataclass(frozen=True)
class Model:
    """What code does with requests of one class.

    Attributes:
        fixture: of this class.
        tokens: [boxes, gamma + 1], what is emitted in each, PADDING behind it; PADDING alone where no rule could.
        tv: total variation of a step's joint from the target's, if the code does in each box what its middle does.
    """

    fixture: Fixture
    grid: Grid
    tokens: Int64[Tensor, "boxes width"]
    tv: float

    @property
    def boxes(self) -> Boxes:
        return self.grid.boxes(self.fixture.gamma + 1)

    def predict(self, given: Float64[Tensor, "s n offsets"]) -> Int64[Tensor, "n width"]:
        """What is emitted for each point, as in ``tokens``."""
        return self.tokens.to(given.device)[self.grid.box_of(given)]


def _padded(rows: list[list[float]]) -> Float64[Tensor, "rows _"]:
    """Lists of different lengths, filled up with infinity."""
    tensors = [torch.tensor(row, dtype=torch.float64) for row in rows]
    return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=torch.inf)


def _pieces(verifier: Verifier, fixture: Fixture, row: int) -> list[tuple[Piece, int]] | None:
    """The intervals of u that draw each token from one draft row, in order."""
    sampler = capabilities(verifier).draft_tokens
    if fixture.deterministic:
        return [((0.0, 1.0), int(fixture.draft.argmax[row]))]
    if sampler is None:
        edges = [0.0, *fixture.q[row].cumsum(0).tolist()]
        return [((low, high), token) for token, (low, high) in enumerate(pairwise(edges)) if high > low]

    def draw(u: Tensor) -> Tensor:
        rows = fixture.draft.select(torch.full((len(u),), row, device=fixture.p.device))
        return guard.draft(sampler, fixture.name, rows, u.to(fixture.p.device))[0].cpu()

    grid = (torch.arange(2048, dtype=torch.float64) + 0.5) / 2048
    tokens = draw(grid)
    change = (tokens[1:] != tokens[:-1]).nonzero()[:, 0]
    if len(change) > 4 * fixture.vocabulary:
        return None
    low, high, left = grid[change], grid[change + 1], tokens[change]
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        same = draw(middle) == left if len(middle) else left.bool()
        low, high = torch.where(same, middle, low), torch.where(same, high, middle)
    edges = [0.0, *high.tolist(), 1.0]
    return list(zip(pairwise(edges), [*left.tolist(), int(tokens[-1])], strict=True))
