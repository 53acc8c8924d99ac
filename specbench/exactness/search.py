"""The total variation of code whose formula nobody wrote down: thresholds in its uniforms are found by bisection.

A verifier is a function of the uniforms it is handed, those that drew the draft included. Along each uniform it changes
at thresholds; the boxes between them are evaluated at their middles, and random points must then do what their box
does.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float64, Int64
from scipy import stats
from torch import Tensor

from specbench.exactness.enumeration import LAWS, joint_tv, one_draft
from specbench.exactness.fixtures import Fixture
from specbench.exactness.injection import GivenStreams, ends_of
from specbench.exactness.paths import Path, interval, paths_of, random_points
from specbench.exactness.steps import Steps, follow, make_draft
from specbench.rng import Stream
from specbench.verifiers import Verifier

_BASES, _SCAN, _BISECTIONS = 24, 33, 50
_CHECKS, _ROUNDS = 2048, 10  # random points a draft, and how often those that were not predicted start a new search
_HOPELESS = 0.2  # share of points not predicted at which there is nothing to search for
_SAME = 2e-14  # thresholds nearer to one another than this are one
_ALONE = 12  # points evaluated in a batch of their own
_MOST_CUTS, _MOST_BOXES = 40, 300_000
_ROUNDING = 1e-12  # total variation that needs no excuse
# Enough points to bound what was missed at 0.4 of the total variation found, if none of them is.
_POINTS_PER_TV, _MOST_POINTS = 40, 2**18
FALSE_ALARM = 1e-7

Axis = tuple[int, int]  # stream, offset
Cuts = dict[Axis, list[float]]


@dataclass(frozen=True)
class Searched:
    """What a search found.

    Attributes:
        tv: total variation of a step's joint from the target's, the largest over the fixture's draft lengths.
        missed: upper bound, at 1 - FALSE_ALARM confidence, on the probability of points that do not do what their box
            does; tv can be off by as much. 0 where tv is, since it is not asked for there.
    """

    tv: float
    missed: float


def search(verifier: Verifier, fixture: Fixture, seed: int = 0) -> Searched | None:
    """The total variation of code.

    Returns:
        None where random points do not do what their box does: the verifier has randomness of its own, a request
        depends on its batch, or the boxes are not aligned with the uniforms (noise that is hashed from them).
    """
    generator = torch.Generator().manual_seed(seed)
    worst = Searched(0.0, 0.0)
    for count in sorted(set(fixture.counts)):
        paths = paths_of(verifier, fixture, count)
        found = None if paths is None else _searched(verifier, fixture, paths, count, generator)
        if found is None:
            return None
        worst = max(worst, found, key=lambda each: each.tv - each.missed)
    return worst


def searched_tv(verifier: Verifier, fixture: Fixture) -> float | None:
    """The total variation alone."""
    found = search(verifier, fixture)
    return None if found is None else found.tv


def _searched(
    verifier: Verifier, fixture: Fixture, paths: list[Path], count: int, generator: torch.Generator
) -> Searched | None:
    width = fixture.gamma + 1
    cuts: list[Cuts] = [{} for _ in paths]
    hints = [_hints(fixture, path) for path in paths]
    owner = torch.arange(len(paths)).repeat_interleave(_BASES)
    given = random_points(paths, owner, width, generator)
    for attempt in range(_ROUNDS):
        _add_thresholds(verifier, fixture, paths, cuts, count, given, owner, generator)
        if attempt == 0:
            active = {axis for found in cuts for axis in found}
            for path, found, known in zip(paths, cuts, hints, strict=True):
                _add_hints(path, found, {axis: known[axis] for axis in active & known.keys()})
        boxes = [_boxes(path, edges, width) for path, edges in zip(paths, cuts, strict=True)]
        if any(box is None for box in boxes):
            return None
        points, weights = zip(*boxes, strict=True)
        steps = _evaluate(verifier, fixture, torch.cat(points, dim=1), count)
        sizes = [len(each) for each in weights]
        owner = torch.arange(len(paths)).repeat_interleave(_CHECKS)
        given = random_points(paths, owner, width, generator)
        wrong = _mispredicted(verifier, fixture, cuts, steps, sizes, count, given, owner)
        if not wrong.any():
            tv = joint_tv(fixture, ends_of(fixture, steps, torch.cat(weights), count))
            if tv <= _ROUNDING:
                return Searched(tv, 0.0)
            total = torch.stack([each.sum() for each in weights])
            points_needed = min(_MOST_POINTS, math.ceil(_POINTS_PER_TV / tv))
            owner = torch.multinomial(total, points_needed, replacement=True, generator=generator)
            given = random_points(paths, owner, width, generator)
            wrong = _mispredicted(verifier, fixture, cuts, steps, sizes, count, given, owner)
            return Searched(tv, float(stats.beta.isf(FALSE_ALARM, int(wrong.sum()) + 1, len(wrong) - int(wrong.sum()))))
        if wrong.double().mean() > _HOPELESS:
            return None
        chosen = wrong.nonzero()[:500, 0]
        given, owner = given[:, chosen], owner[chosen]
    return None


def _evaluate(verifier: Verifier, fixture: Fixture, given: Float64[Tensor, "s n width"], count: int) -> Steps:
    device = fixture.p.device
    counts = torch.full((given.shape[1],), count, device=device)
    sampler = getattr(verifier, "draft_tokens", None)
    streams = GivenStreams.of(given.to(device))
    of_length = dataclasses.replace(fixture, counts=(count,))
    draft, target = make_draft(of_length, streams.given[Stream.DRAFT], counts, sampler)
    return follow(fixture, draft, target, verifier.verify(draft, target, streams)).cpu()


def _in_company(verifier: Verifier, fixture: Fixture, given: Float64[Tensor, "s n width"], count: int) -> Steps:
    """The same with a stranger behind each request: of the fixture's other draft lengths and sampling parameters."""
    device, n = fixture.p.device, given.shape[1]
    others = [each for each in fixture.counts if each != count] or [count]
    strangers = torch.tensor(others, device=device)[torch.arange(n, device=device) % len(others)]
    counts = torch.stack([torch.full_like(strangers, count), strangers], 1).flatten()
    base = torch.tensor([0, fixture.rows * (fixture.variants - 1)], device=device).repeat(n)
    sampler = getattr(verifier, "draft_tokens", None)
    streams = GivenStreams.of(given.repeat_interleave(2, dim=1).to(device))
    both = dataclasses.replace(fixture, counts=(count, *others))
    draft, target = make_draft(both, streams.given[Stream.DRAFT], counts, sampler, base)
    steps = follow(fixture, draft, target, verifier.verify(draft, target, streams), base).cpu()
    names = ("rows", "tokens", "emitted", "malformed")
    return dataclasses.replace(steps, **{name: getattr(steps, name)[0::2] for name in names})


def _code(steps: Steps) -> Int64[Tensor, " n"]:
    """One number for each outcome."""
    tokens = torch.where(steps.emitted, steps.tokens + 1, 0)
    base = int(tokens.max()) + 2
    code = steps.malformed.long()
    for i in range(tokens.shape[1]):
        code = code * base + tokens[:, i]
    return code


def _coordinates(width: int) -> list[Axis]:
    return [(int(stream), i) for stream in Stream for i in range(width)]


def _add_thresholds(
    verifier: Verifier,
    fixture: Fixture,
    paths: list[Path],
    cuts: list[Cuts],
    count: int,
    given: Float64[Tensor, "s m width"],
    owner: Int64[Tensor, " m"],
    generator: torch.Generator,
) -> None:
    """Adds to each draft's cuts the thresholds on the lines through the given points, along every uniform."""
    axes = _coordinates(fixture.gamma + 1)
    bases, n = given.shape[1], _SCAN + 1
    lines = given[:, None, :, None, :].repeat(1, len(axes), 1, n, 1)
    for number, (stream, offset) in enumerate(axes):
        bounds = torch.tensor([interval(path, stream, offset) for path in paths], dtype=torch.float64)[owner]
        shift = torch.rand((bases, 1), generator=generator, dtype=torch.float64)  # no two lines are blind to the same
        share = (torch.arange(_SCAN, dtype=torch.float64) + shift) / _SCAN
        scan = bounds[:, :1] + (bounds[:, 1:] - bounds[:, :1]) * share
        scan = torch.cat([scan.clamp(2.0**-53, 1 - 2.0**-53), given[stream, :, offset, None]], 1).sort(dim=1).values
        lines[stream, number, :, :, offset] = scan
    flat = lines.flatten(1, 3)
    code = _code(_evaluate(verifier, fixture, flat, count)).view(len(axes), bases, n)
    changed = (code[..., 1:] != code[..., :-1]).nonzero()
    left_code, right_code = code[..., :-1][tuple(changed.T)], code[..., 1:][tuple(changed.T)]
    # One change of a kind near one place is enough.
    kind = torch.stack([changed[:, 0], owner[changed[:, 1]], changed[:, 2], left_code, right_code], 1)
    first = _first_of_each(kind)
    changed, left_code = changed[first], left_code[first]
    index = (changed[:, 0] * bases + changed[:, 1]) * n + changed[:, 2]
    axis = torch.tensor(axes)[changed[:, 0]]
    points, number = flat[:, index].clone(), torch.arange(len(index))
    low, high = flat[axis[:, 0], index, axis[:, 1]], flat[axis[:, 0], index + 1, axis[:, 1]]
    for _ in range(_BISECTIONS if len(index) else 0):
        middle = (low + high) / 2
        points[axis[:, 0], number, axis[:, 1]] = middle
        same = _code(_evaluate(verifier, fixture, points, count)) == left_code
        low, high = torch.where(same, middle, low), torch.where(same, high, middle)
    for place, base, value in zip(changed[:, 0].tolist(), changed[:, 1].tolist(), high.tolist(), strict=True):
        here = cuts[int(owner[base])]
        here[axes[place]] = _merged([*here.get(axes[place], []), value])


def _hints(fixture: Fixture, path: Path) -> Cuts:
    """Where the thresholds of the rules lie that have a closed form, and those of drawing from the target's rows."""
    drafts = one_draft(fixture, torch.tensor(path.tokens, dtype=torch.int64))
    edges: Cuts = {}
    for i, row in enumerate(drafts.p[0]):
        own = row.cumsum(0)[:-1].tolist()
        edges[int(Stream.EMIT), i] = list(own)
        edges[int(Stream.DRAFT), i] = list(own)
    for law_of_rule in LAWS.values():
        law = law_of_rule(drafts)
        for i, threshold in enumerate(law.accept[0].tolist()):
            edges.setdefault((int(Stream.ACCEPT), i), []).append(threshold)
        edges[int(Stream.EMIT), 0] += law.emit[0].cumsum(-1)[:, :-1].flatten().tolist()
    return edges


def _add_hints(path: Path, cuts: Cuts, hints: Cuts) -> None:
    """Adds the hints inside the draft's intervals; a cut too many does no harm."""
    for (stream, offset), values in hints.items():
        low, high = interval(path, stream, offset)
        inside = [value for value in values if low + _SAME < value < high - _SAME]
        if inside:
            cuts[stream, offset] = _merged([*cuts.get((stream, offset), []), *inside])


def _first_of_each(rows: Int64[Tensor, "n k"]) -> Int64[Tensor, " m"]:
    """The index of the first of each set of equal rows."""
    if len(rows) == 0:
        return torch.zeros(0, dtype=torch.int64)
    unique, inverse = torch.unique(rows, dim=0, return_inverse=True)
    first = torch.full((len(unique),), len(rows))
    return first.scatter_reduce(0, inverse, torch.arange(len(rows)), "amin")


def _merged(values: list[float]) -> list[float]:
    merged: list[float] = []
    for value in sorted(values):
        if not merged or value - merged[-1] > _SAME:
            merged.append(value)
    return merged


def _boxes(path: Path, cuts: Cuts, width: int) -> tuple[Float64[Tensor, "s n width"], Float64[Tensor, " n"]] | None:
    """The middles of the product of intervals, and the probability of the draft times each one's share."""
    points = torch.full((len(Stream), 1, width), 0.5, dtype=torch.float64)
    weight = torch.ones(1, dtype=torch.float64)
    for i, (low, high) in enumerate(path.intervals):
        points[Stream.DRAFT, :, i] = (low + high) / 2
        weight = weight * (high - low)
    for (stream, offset), values in cuts.items():
        low, high = interval(path, stream, offset)
        edges = torch.tensor([low, *values, high], dtype=torch.float64)
        n, m = len(weight), len(edges) - 1
        if len(values) > _MOST_CUTS or n * m > _MOST_BOXES:
            return None
        points = points.repeat_interleave(m, dim=1)
        points[stream, :, offset] = ((edges[1:] + edges[:-1]) / 2).repeat(n)
        weight = weight.repeat_interleave(m) * ((edges[1:] - edges[:-1]) / (high - low)).repeat(n)
    return points, weight


def _mispredicted(
    verifier: Verifier,
    fixture: Fixture,
    cuts: list[Cuts],
    steps: Steps,
    boxes: list[int],
    count: int,
    given: Float64[Tensor, "s m width"],
    owner: Int64[Tensor, " m"],
) -> Bool[Tensor, " m"]:
    """Which points do not do what the middle of their box does."""
    chosen, first = torch.zeros_like(owner), 0
    for i, edges in enumerate(cuts):
        own = owner == i
        index = torch.zeros(int(own.sum()), dtype=torch.int64)
        for (stream, offset), values in edges.items():
            value = given[stream, own, offset].contiguous()
            place = torch.bucketize(value, torch.tensor(values, dtype=torch.float64), right=True)
            index = index * (len(values) + 1) + place
        chosen[own] = index + first
        first += boxes[i]
    # In parts, backwards and among strangers: a request that depends on its batch will do something else.
    order = torch.arange(len(owner) - 1, -1, -1)
    parts = [_in_company(verifier, fixture, given[:, part].contiguous(), count) for part in order.chunk(5)]
    got_tokens = torch.cat([torch.where(part.emitted, part.tokens, -1) for part in parts]).flip(0)
    got_malformed = torch.cat([part.malformed for part in parts]).flip(0)
    for i in torch.linspace(0, len(owner) - 1, _ALONE).long().unique().tolist():
        alone = _evaluate(verifier, fixture, given[:, i : i + 1].contiguous(), count)
        got_tokens[i] = torch.where(alone.emitted, alone.tokens, -1)[0]
        got_malformed[i] = alone.malformed[0]
    expected = torch.where(steps.emitted, steps.tokens, -1)[chosen]
    return (got_tokens != expected).any(dim=1) | (got_malformed != steps.malformed[chosen])
