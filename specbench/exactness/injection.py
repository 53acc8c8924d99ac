"""The exact tier for code: uniforms are handed to a verifier, and its outputs are weighted by how likely they are.

For one draft a verifier is a function of its uniforms, constant inside the boxes of a grid. Where the grid is known
(the thresholds of the rule that it names), one call a box gives its joint distribution to rounding, and calls right
beside every threshold say how exactly it places them. Where it is not, as with a flawed verifier, thresholds are
searched for by bisection, and the total variation of the very code comes out without anyone writing down its formula.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from specbench.exactness.enumeration import Drafts, Ends, StepLaw, all_drafts, joint_tv, law_of
from specbench.exactness.fixtures import Fixture
from specbench.exactness.steps import Steps, follow
from specbench.rng import Stream, Streams
from specbench.types import Draft, LogitRows
from specbench.verifiers import Verifier

# How near to a threshold a call is made: from the spacing of float64 to that of bfloat16.
LADDER = (1e-15, 1e-14, 1e-13, 1e-12, 1e-11, 1e-10, 1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2)
_SMALLEST, _LARGEST = 2.0**-53, 1 - 2.0**-53
_CHUNK = 65536


@dataclass(frozen=True)
class GivenStreams(Streams):
    """Streams whose uniforms are given; remembers whether it was asked for any.

    Attributes:
        given: [streams, B, width], every value inside (0, 1).
        asked: the streams that were read.
    """

    given: Float64[Tensor, "streams B width"] = field(kw_only=True)
    asked: set[Stream] = field(default_factory=set, kw_only=True)

    @staticmethod
    def of(given: Float64[Tensor, "streams B width"]) -> GivenStreams:
        """Streams of ordinary seeds and positions that yield the given uniforms."""
        batch, device = given.shape[1], given.device
        seeds = torch.arange(batch, device=device)
        return GivenStreams(seeds, torch.zeros_like(seeds), given.shape[2], given=given)

    def uniform(self, stream: Stream) -> Float64[Tensor, "B width"]:
        """The given uniforms of a stream."""
        self.asked.add(stream)
        return self.given[stream]


@dataclass(frozen=True)
class InjectedResult:
    """What injected uniforms showed.

    Attributes:
        error: total variation of the joint from the target's, with each box's probability taken from the rule.
        margin: the smallest distance from a threshold, of those in LADDER, beyond which every decision was right.
    """

    error: float
    margin: float


def takes_injected_uniforms(verifier: Verifier, fixture: Fixture) -> bool:
    """Whether the verifier draws from the streams it is handed, not from its seeds by itself."""
    drafts = all_drafts(fixture, fixture.gamma)
    half = torch.full((len(Stream), 1, fixture.gamma + 1), 0.5, dtype=torch.float64, device=fixture.p.device)
    streams = GivenStreams.of(half)
    verifier.verify(*_arguments(fixture, drafts, torch.zeros(1, dtype=torch.int64)), streams)
    return bool(streams.asked)


def injected_error(verifier: Verifier, fixture: Fixture) -> InjectedResult:
    """Runs a verifier of a known rule on every box of that rule's grid, for every draft of the fixture.

    Raises:
        ArgumentError: the verifier's rule has no closed form.
    """
    errors, margins = [0.0], [0.0]
    for count in sorted(set(fixture.counts)):
        drafts = all_drafts(fixture, count)
        law = law_of(verifier.rule)(drafts)
        grids = [_rule_grid(law, i, fixture.gamma + 1) for i in range(len(drafts.tokens))]
        owner = torch.cat([torch.full((len(grid.volume),), i) for i, grid in enumerate(grids)])
        middle = torch.cat([grid.middle for grid in grids], dim=1)
        volume = torch.cat([grid.volume for grid in grids]) * drafts.weight[owner]
        steps = evaluate(verifier, fixture, drafts, owner, middle)
        errors.append(joint_tv(fixture, ends_of(fixture, steps, volume, count)))
        margins.append(_margin(verifier, fixture, drafts, owner, grids, steps))
    return InjectedResult(max(errors), max(margins))


def extreme_failures(verifier: Verifier, fixture: Fixture) -> tuple[int, int]:
    """Calls at the ends of the uniforms' range, and how many gave what no rule can give or the target forbids.

    Every draft, with the accept and the emit uniforms at the smallest and the largest number that a stream can yield. A
    u = 0 that accepts p = 0, or a sum that u = 1 overruns, is too rare to be met by sampling.
    """
    calls, failures = 0, 0
    ends = torch.tensor([_SMALLEST, _LARGEST], dtype=torch.float64)
    for count in sorted(set(fixture.counts)):
        drafts = all_drafts(fixture, count)
        for accept in ends:
            for emit in ends:
                given = torch.full((len(Stream), len(drafts.tokens), fixture.gamma + 1), 0.5, dtype=torch.float64)
                given[Stream.ACCEPT], given[Stream.EMIT] = accept, emit
                steps = evaluate(verifier, fixture, drafts, torch.arange(len(drafts.tokens)), given)
                forbidden = (steps.emitted & (fixture.p.cpu()[steps.rows, steps.tokens] == 0)).any(dim=1)
                calls += len(drafts.tokens)
                failures += int((forbidden | steps.malformed).sum())
    return calls, failures


def evaluate(
    verifier: Verifier,
    fixture: Fixture,
    drafts: Drafts,
    owner: Int64[Tensor, " n"],
    given: Float64[Tensor, "s n width"],
) -> Steps:
    """One step for each pair of a draft and uniforms; runs where the fixture is, what was emitted is on the CPU."""
    parts = []
    for start in range(0, len(owner), _CHUNK):
        chosen = slice(start, start + _CHUNK)
        draft, target = _arguments(fixture, drafts, owner[chosen])
        streams = GivenStreams.of(given[:, chosen].contiguous().to(fixture.p.device))
        parts.append(follow(fixture, draft, target, verifier.verify(draft, target, streams)).cpu())
    names = ("rows", "tokens", "emitted", "malformed")
    return dataclasses.replace(parts[0], **{name: torch.cat([getattr(part, name) for part in parts]) for name in names})


def ends_of(fixture: Fixture, steps: Steps, weight: Float64[Tensor, " n"], num_draft_tokens: int) -> Ends:
    """Where weighted steps end; a malformed step's mass is lost, and so counts as an error."""
    ends = []
    last = steps.emitted.sum(dim=1) - 1
    for i in range(num_draft_tokens + 1):
        here = (last == i) & ~steps.malformed
        index = (steps.rows[:, i] - fixture.first_row[i]) * fixture.vocabulary + steps.tokens[:, i]
        out = torch.zeros(fixture.vocabulary ** (i + 1), dtype=torch.float64)
        ends.append(out.index_add_(0, index[here].cpu(), weight[here].cpu()))
    return ends


def _arguments(fixture: Fixture, drafts: Drafts, owner: Int64[Tensor, " n"]) -> tuple[Draft, LogitRows]:
    count, device = drafts.tokens.shape[1], fixture.p.device
    table = drafts.rows[owner].to(device)
    rows = None
    if not fixture.deterministic and count:
        rows = fixture.draft.select(table[:, :count].flatten())
    num = torch.full((len(owner),), count, device=device)
    draft = Draft(drafts.tokens[owner].flatten().to(device), rows, num, count)
    return draft, fixture.target.select(table.flatten())


@dataclass(frozen=True)
class _Grid:
    """The boxes of one draft: [streams, n, width] points at their middle and ends, [n] their volumes."""

    low: Float64[Tensor, "s n width"]
    middle: Float64[Tensor, "s n width"]
    high: Float64[Tensor, "s n width"]
    volume: Float64[Tensor, " n"]


def _grid(edges: dict[tuple[int, int], Sequence[float]], width: int) -> _Grid:
    """The product of intervals over the coordinates (stream, offset) that have edges; all others stay at 1/2."""
    points = [torch.full((len(Stream), 1, width), 0.5, dtype=torch.float64) for _ in range(3)]
    volume = torch.ones(1, dtype=torch.float64)
    for (stream, offset), cuts in edges.items():
        bounds = torch.tensor(cuts, dtype=torch.float64)
        low, high = bounds[:-1], bounds[1:]
        n, m = len(volume), len(low)
        points = [each.repeat_interleave(m, dim=1) for each in points]
        for each, value in zip(points, (low, (low + high) / 2, high), strict=True):
            each[stream, :, offset] = value.repeat(n)
        volume = volume.repeat_interleave(m) * (high - low).repeat(n)
    return _Grid(*points, volume)


def _rule_grid(law: StepLaw, draft: int, width: int) -> _Grid:
    edges: dict[tuple[int, int], Sequence[float]] = {}
    for i, threshold in enumerate(law.accept[draft].tolist()):
        edges[Stream.ACCEPT, i] = _cuts([threshold])
    possible = law.length[draft] > 0
    cumulative = law.emit[draft][possible].cumsum(-1)[:, :-1].flatten()
    edges[Stream.EMIT, 0] = _cuts(cumulative.tolist())
    return _grid(edges, width)


def _cuts(thresholds: Sequence[float]) -> list[float]:
    """0, the thresholds inside (0, 1) in order, 1; those that differ by rounding alone count once."""
    cuts = [0.0]
    for each in sorted(thresholds):
        if cuts[-1] + 4e-15 < each < 1 - 4e-15:
            cuts.append(each)
    return [*cuts, 1.0]


def _margin(
    verifier: Verifier, fixture: Fixture, drafts: Drafts, owner: Tensor, grids: Sequence[_Grid], steps: Steps
) -> float:
    """The smallest distance of the ladder at which both sides of every threshold give what the box's middle gives."""
    low = torch.cat([grid.low for grid in grids], dim=1)
    high = torch.cat([grid.high for grid in grids], dim=1)
    middle = torch.cat([grid.middle for grid in grids], dim=1)
    for distance in LADDER:
        agreed = True
        for corner, sign in ((low, 1), (high, -1)):
            moved = corner + sign * distance
            point = torch.where(sign * (moved - middle) > 0, middle, moved).clamp(_SMALLEST, _LARGEST)
            beside = evaluate(verifier, fixture, drafts, owner, point)
            if not torch.equal(
                torch.where(beside.emitted, beside.tokens, -1), torch.where(steps.emitted, steps.tokens, -1)
            ):
                agreed = False
                break
        if agreed:
            return distance
    return 1.0
