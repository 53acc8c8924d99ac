"""Drafts as the intervals of the DRAFT uniforms that yield them, and random points inside."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from specbench.core.rng import Stream
from specbench.exactness import guard
from specbench.exactness.fixtures import Fixture
from specbench.rules.verifier import Verifier

_BISECTIONS = 50
_MOST_PATHS = 1000

Piece = tuple[float, float]


@dataclass(frozen=True)
class Path:
    """A draft as the intervals of the DRAFT uniforms that yield it."""

    intervals: tuple[Piece, ...] = ()
    state: int = 0
    tokens: tuple[int, ...] = ()

    def interval(self, stream: int, offset: int) -> Piece:
        """Where a uniform may lie without changing the draft."""
        drawn = stream == Stream.DRAFT and offset < len(self.intervals)
        return self.intervals[offset] if drawn else (0.0, 1.0)


@dataclass(frozen=True)
class Tree:
    """Every draft of one length.

    Attributes:
        paths: the drafts.
        ends: for each drafted token, [nodes, most]: where the intervals of each node end, but for its last one.
        children: likewise, [nodes, most + 1]: the node behind each; those of the last token are the paths' numbers.
    """

    paths: list[Path]
    ends: list[Float64[Tensor, "_ _"]]
    children: list[Int64[Tensor, "_ _"]]

    @staticmethod
    def of(verifier: Verifier, fixture: Fixture, count: int) -> Tree | None:
        """None where the verifier's own sampler has too many intervals, or there are too many drafts."""
        paths, ends, children = [Path()], [], []
        for i in range(count):
            by_node = [_pieces(verifier, fixture, fixture.first_row[i] + path.state) for path in paths]
            known = [pieces for pieces in by_node if pieces is not None]
            if len(known) < len(by_node) or sum(map(len, known)) > _MOST_PATHS:
                return None
            most = max(map(len, known))
            end = torch.full((len(paths), most - 1), torch.inf, dtype=torch.float64)
            child = torch.zeros((len(paths), most), dtype=torch.int64)
            longer: list[Path] = []
            for node, (path, pieces) in enumerate(zip(paths, known, strict=True)):
                end[node, : len(pieces) - 1] = torch.tensor([high for (_, high), _ in pieces[:-1]], dtype=torch.float64)
                child[node, : len(pieces)] = torch.arange(len(longer), len(longer) + len(pieces))
                for piece, token in pieces:
                    state = int(fixture.advance(i, torch.tensor(path.state), torch.tensor(token)))
                    longer.append(Path((*path.intervals, piece), state, (*path.tokens, token)))
            ends.append(end)
            children.append(child)
            paths = longer
        return Tree(paths, ends, children)

    def path_of(self, given: Float64[Tensor, "s n width"]) -> Int64[Tensor, " n"]:
        """The number of the draft that each point yields."""
        node = torch.zeros(given.shape[1], dtype=torch.int64, device=given.device)
        for i, (end, child) in enumerate(zip(self.ends, self.children, strict=True)):
            place = (given[Stream.DRAFT, :, i, None] >= end.to(node.device)[node]).sum(dim=1)
            node = child.to(node.device)[node, place]
        return node

    def random_points(
        self, owner: Int64[Tensor, " m"], width: int, generator: torch.Generator
    ) -> Float64[Tensor, "s m width"]:
        """A point for each entry of ``owner``, with the draft of that path."""
        shape = (len(Stream), len(owner), width)
        given = torch.rand(shape, generator=generator, dtype=torch.float64).clamp(min=2.0**-53)
        for i in range(len(self.ends)):
            low, high = torch.tensor([path.intervals[i] for path in self.paths], dtype=torch.float64)[owner].T
            given[Stream.DRAFT, :, i] = low + (high - low) * given[Stream.DRAFT, :, i]
        return given


def _pieces(verifier: Verifier, fixture: Fixture, row: int) -> list[tuple[Piece, int]] | None:
    """The intervals of u that draw each token from one draft row, in order."""
    sampler = guard.draft_sampler(verifier, fixture.name)
    if fixture.deterministic:
        return [((0.0, 1.0), int(fixture.draft.argmax[row]))]
    if sampler is None:
        edges = [0.0, *fixture.q[row].cumsum(0).tolist()]
        pieces = [((edges[t], edges[t + 1]), t) for t in range(fixture.vocabulary)]
        return [(piece, token) for piece, token in pieces if piece[1] > piece[0]]

    def draw(u: Tensor) -> Tensor:
        rows = fixture.draft.select(torch.full((len(u),), row, device=fixture.p.device))
        return sampler(rows, u.to(fixture.p.device))[0].cpu()

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
    drawn = [int(left[i]) for i in range(len(left))] + [int(tokens[-1])]
    return [((edges[i], edges[i + 1]), drawn[i]) for i in range(len(drawn))]
