"""Drafts as the intervals of the DRAFT uniforms that yield them, and random points inside."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from specbench.exactness.fixtures import Fixture
from specbench.rng import Stream
from specbench.verifiers import Verifier

_BISECTIONS = 50

Piece = tuple[float, float]


@dataclass(frozen=True)
class Path:
    """A draft as the intervals of the DRAFT uniforms that yield it."""

    intervals: tuple[Piece, ...]
    state: int
    tokens: tuple[int, ...] = ()


def paths_of(verifier: Verifier, fixture: Fixture, count: int) -> list[Path] | None:
    """Every draft of ``count`` tokens; None where the verifier's own sampler has too many intervals."""
    paths = [Path((), 0)]
    for i in range(count):
        longer = []
        for path in paths:
            pieces = _pieces(verifier, fixture, fixture.first_row[i] + path.state)
            if pieces is None:
                return None
            for piece, token in pieces:
                state = int(fixture.advance(i, torch.tensor(path.state), torch.tensor(token)))
                longer.append(Path((*path.intervals, piece), state, (*path.tokens, token)))
        paths = longer
    return paths


def _pieces(verifier: Verifier, fixture: Fixture, row: int) -> list[tuple[Piece, int]] | None:
    """The intervals of u that draw each token from one draft row."""
    sampler = getattr(verifier, "draft_tokens", None)
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


def random_points(
    paths: list[Path], owner: Int64[Tensor, " m"], width: int, generator: torch.Generator
) -> Float64[Tensor, "s m width"]:
    """A point for each entry of ``owner``, with the draft of that path."""
    given = torch.rand((len(Stream), len(owner), width), generator=generator, dtype=torch.float64).clamp(min=2.0**-53)
    for i in range(len(paths[0].intervals)):
        low, high = torch.tensor([path.intervals[i] for path in paths], dtype=torch.float64)[owner].T
        given[Stream.DRAFT, :, i] = low + (high - low) * given[Stream.DRAFT, :, i]
    return given


def interval(path: Path, stream: int, offset: int) -> Piece:
    """Where a uniform may lie without changing the draft."""
    drawn = stream == Stream.DRAFT and offset < len(path.intervals)
    return path.intervals[offset] if drawn else (0.0, 1.0)
