"""Where code changes what it emits: its thresholds in each of its uniforms, found by bisection.

A verifier is a function of the uniforms it is handed, those that drew the draft included. Along each uniform it changes
at thresholds; between them it is taken to do what it does in the middle. The thresholds of the rules with a closed form
are put in beforehand, and every box is probed right beside all its sides, so that a threshold out of place by as little
as 2e-14 shows, and is bisected in its turn.

A strip that lies in the middle of a box, and is not met by a line, is not found here: how much of the mass that can be
is for the draws to say (draws/probes.py), which come back with the points at which the code did something else.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from specbench.core.rng import Stream
from specbench.exactness.enumeration.boxes import (
    MOST_BOXES,
    Axis,
    Boxes,
    Cuts,
    DraftIntervals,
    Grid,
    IntervalTree,
    Model,
)
from specbench.exactness.enumeration.injection import ends_of, inject
from specbench.exactness.enumeration.laws import drafts_of, joint_tv, law_of
from specbench.exactness.fixtures import Fixture
from specbench.exactness.steps import Steps
from specbench.rules.rule import Rule, rule_of, rules_with_formulas
from specbench.rules.verifier import Verifier

SAME = 2e-14  # thresholds nearer to one another than this are one
_BASES, _SCAN = 240, 33  # lines along each uniform, points on each
_SECTIONS, _DIVISIONS = 8, 16  # into how many parts what holds a threshold is divided, and how often: to 2^-48
_CHECKS, _ROUNDS = 20_000, 10  # random points, and how often those that were not predicted start a new search
_SIDES = 4  # how often the sides of the boxes are probed for thresholds out of place
_HOPELESS, _PATIENCE = 0.2, 2  # share of points not predicted that is no use; after _PATIENCE rounds a tenth of it
_REDRAWN = 4  # times that each uniform is drawn again, to see whether it makes a difference
_FOLLOWED = 400  # points not predicted that are followed up at once


def locate(verifier: Verifier, fixture: Fixture, effort: float = 1.0) -> Model | None:
    """The model of code with requests of one class.

    Args:
        fixture: of this class, with few sequences.
        effort: share of the usual lines, random points and boxes, for code that is slow; 1 is some 50,000 requests.

    Returns:
        None where random points do not do what their box does: the verifier has randomness of its own, or the boxes are
        not aligned with the uniforms (noise that is hashed from them).
    """
    tree = IntervalTree.of(verifier, fixture)
    if tree is None:
        return None
    search = _Search(verifier, fixture, tree, 0, effort)
    owner = torch.arange(len(tree.paths)).repeat_interleave(max(2, int(effort * _BASES / len(tree.paths))))
    return search.run(search.random(owner), owner)


def relocate(verifier: Verifier, model: Model, given: Float64[Tensor, "s n width"], seed: int) -> Model | None:
    """The model again, with what the code does at points that the model did not foresee.

    Returns:
        None where the code does not do there what it did, or where random points still do not do what their box does.
    """
    search = _Search(verifier, model.fixture, model.grid.tree, seed, 1.0)
    search.cuts = [dict(values_by_axis) for values_by_axis in model.grid.cuts]
    given = given[:, :_FOLLOWED]
    return search.run(given, model.grid.tree.path_of(given))


class _Search:
    def __init__(self, verifier: Verifier, fixture: Fixture, tree: IntervalTree, seed: int, effort: float):
        self.verifier, self.fixture, self.tree = verifier, fixture, tree
        self.rule = rule_of(verifier)
        self.width = fixture.gamma + 1
        self.most_boxes = effort * MOST_BOXES
        self.checks = max(64, int(effort * _CHECKS / len(tree.paths)))
        self.cuts: list[Cuts] = [{} for _ in tree.paths]
        self.generator = torch.Generator().manual_seed(seed)
        self.streams_read: set[Stream] = set()

    def random(self, owner: Int64[Tensor, " m"]) -> Float64[Tensor, "s m width"]:
        """A point for each entry of ``owner``, with the draft of that path."""
        shape = (len(Stream), len(owner), self.width)
        given = torch.rand(shape, generator=self.generator, dtype=torch.float64).clamp(min=2.0**-53)
        for i in range(self.fixture.count):
            low, high = torch.tensor([path.intervals[i] for path in self.tree.paths], dtype=torch.float64)[owner].T
            given[Stream.DRAFT, :, i] = low + (high - low) * given[Stream.DRAFT, :, i]
        return given

    def inject(self, given: Float64[Tensor, "s n width"]) -> Steps:
        return inject(self.verifier, self.fixture, given, self.streams_read)

    def run(self, given: Float64[Tensor, "s m width"], owner: Int64[Tensor, " m"]) -> Model | None:
        """Rounds of: thresholds on lines through the points, sides of the boxes, random points."""
        for attempt in range(_ROUNDS):
            self.add_lines(given, owner)
            if attempt == 0:
                self.add_hints()
            model = self.model()
            if model is None:
                return None
            owner = torch.arange(len(self.tree.paths)).repeat_interleave(self.checks)
            given = self.random(owner)
            wrong = (self.inject(given).visible != model.predict(given)).any(dim=1)
            if not wrong.any():
                return model
            if wrong.double().mean() > (_HOPELESS if attempt < _PATIENCE else _HOPELESS / 10):
                return None
            chosen = wrong.nonzero()[:_FOLLOWED, 0]
            given, owner = given[:, chosen], owner[chosen]
        return None

    def code(self, steps: Steps) -> Int64[Tensor, " n"]:
        """One number for each outcome."""
        code = steps.malformed.long()
        for tokens in steps.visible.T:  # PADDING, or tokens of the vocabulary
            code = code * (self.fixture.vocabulary + 1) + tokens + 1
        return code

    def add_lines(self, given: Float64[Tensor, "s m width"], owner: Int64[Tensor, " m"]) -> None:
        """Adds the thresholds on the lines through the given points, along every uniform that is read."""
        axes = self.axes(given, owner)
        if not axes:
            return
        bases, n = given.shape[1], _SCAN + 1
        lines = given[:, None, :, None, :].repeat(1, len(axes), 1, n, 1)
        for number, (stream, offset) in enumerate(axes):
            pieces = [path.interval(stream, offset) for path in self.tree.paths]
            low, high = torch.tensor(pieces, dtype=torch.float64)[owner, :, None].unbind(1)
            shift = torch.rand((bases, 1), generator=self.generator, dtype=torch.float64)  # each line sees other places
            scan = low + (high - low) * (torch.arange(_SCAN, dtype=torch.float64) + shift) / _SCAN
            scan = torch.cat([scan.clamp(2.0**-53, 1 - 2.0**-53), given[stream, :, offset, None]], 1).sort(dim=1).values
            lines[stream, number, :, :, offset] = scan
        flat = lines.flatten(1, 3)
        code = self.code(self.inject(flat)).view(len(axes), bases, n)
        changed = (code[..., 1:] != code[..., :-1]).nonzero()
        kind = torch.cat([changed[:, :1], owner[changed[:, 1], None], changed[:, 2:]], 1)
        kind = torch.cat([kind, code[..., :-1][tuple(changed.T)][:, None], code[..., 1:][tuple(changed.T)][:, None]], 1)
        _, first = np.unique(kind.numpy(), axis=0, return_index=True)
        changed = changed[torch.from_numpy(first)]  # one change of a kind near one place is enough
        index = (changed[:, 0] * bases + changed[:, 1]) * n + changed[:, 2]
        axis = torch.tensor(axes, dtype=torch.int64).reshape(-1, 2)[changed[:, 0]]
        self._bisect(flat[:, index], flat[:, index + 1], axis, owner[changed[:, 1]])

    def axes(self, given: Float64[Tensor, "s m width"], owner: Int64[Tensor, " m"]) -> list[Axis]:
        """The uniforms that make a difference at the given points, and those that did before or do by its rule."""
        before = self.inject(given).visible  # says which streams are read
        active = self.active()
        possible = [(int(stream), i) for stream in sorted(self.streams_read) for i in range(self.width)]
        open_ = [axis for axis in possible if axis not in active]
        if open_:
            others = given.repeat(1, len(open_) * _REDRAWN, 1).unflatten(1, (len(open_), -1))
            redrawn = self.random(owner.repeat(_REDRAWN))
            for number, (stream, offset) in enumerate(open_):
                others[stream, number, :, offset] = redrawn[stream, :, offset]
            after = self.inject(others.flatten(1, 2)).visible.unflatten(0, (len(open_), _REDRAWN, -1))
            differ = (after != before).flatten(1).any(dim=1).tolist()
            active |= {axis for axis, differs in zip(open_, differ, strict=True) if differs}
        return sorted(active)

    def active(self) -> set[Axis]:
        """Returns the uniforms with cuts, and those that the declared rule reads.

        Sampling misses some of the latter if the verifier rarely rejects.
        """
        axes = {axis for cuts in self.cuts for axis in cuts}
        if self.rule.has_law:
            axes |= {(int(Stream.ACCEPT), i) for i in range(self.fixture.count)} | {(int(Stream.EMIT), 0)}
        return axes

    def add_cuts(self, i: int, axis: Axis, values: list[float]) -> None:
        """Adds thresholds of a draft on an axis: those inside the draft's interval, in order, each once."""
        low, high = self.tree.paths[i].interval(*axis)
        distinct: list[float] = []
        for value in sorted([*self.cuts[i].get(axis, []), *values]):
            if low + SAME < value < high - SAME and (not distinct or value - distinct[-1] > SAME):
                distinct.append(value)
        self.cuts[i][axis] = distinct

    def _bisect(
        self,
        left: Float64[Tensor, "s n width"],
        right: Float64[Tensor, "s n width"],
        axis: Int64[Tensor, "n 2"],
        owner: Int64[Tensor, " n"],
    ) -> None:
        """Adds a threshold between each pair of points, which differ along one axis and in what is emitted."""
        if len(owner) == 0:
            return
        stream, offset = axis.T
        number, inner = torch.arange(len(owner)), torch.arange(1, _SECTIONS, dtype=torch.float64) / _SECTIONS
        low, high = left[stream, number, offset], right[stream, number, offset]
        want = self.code(self.inject(left))[:, None]
        for _ in range(_DIVISIONS):
            cuts = low[:, None] + (high - low)[:, None] * inner
            points = left[:, :, None, :].repeat(1, 1, len(inner), 1)
            points[stream, number, :, offset] = cuts
            same = (self.code(self.inject(points.flatten(1, 2))).view(cuts.shape) == want).long()
            first = same.cumprod(dim=1).sum(dim=1)  # sections up to the first that is not as on the left
            edges = torch.cat([low[:, None], cuts, high[:, None]], dim=1)
            low, high = (edges.gather(1, place[:, None])[:, 0] for place in (first, first + 1))
        for i, place, value in zip(owner.tolist(), map(tuple, axis.tolist()), high.tolist(), strict=True):
            self.add_cuts(i, place, [value])

    def add_hints(self) -> None:
        """Adds the closed forms' thresholds on the axes that have any; a cut too many does no harm."""
        active = self.active()
        for i, path in enumerate(self.tree.paths):
            for axis, values in _hints(self.fixture, path, self.rule).items():
                if axis in active:
                    self.add_cuts(i, axis, values)

    def model(self) -> Model | None:
        """Boxes whose sides are where the code's thresholds are."""
        for _ in range(_SIDES):
            grid = Grid.of(self.tree, self.cuts, self.most_boxes)
            if grid is None:
                return None
            boxes = grid.boxes(self.width)
            steps = self.inject(boxes.middle)
            before = int((grid.sizes - 1).sum())
            self._add_beside(boxes, grid.axes, steps)
            if sum(len(values) for values_by_axis in self.cuts for values in values_by_axis.values()) == before:
                break
        tv = joint_tv(self.fixture, ends_of(steps, boxes.weight))
        # Each side is known to SAME, and so much of the mass may lie on the wrong side of it.
        share = torch.stack([boxes.weight[boxes.owner == i].sum() for i in range(len(self.tree.paths))])
        slack = SAME * float(((grid.sizes - 1).sum(dim=1) * share).sum())
        return Model(self.fixture, grid, steps.visible, tv + slack)

    def _add_beside(self, boxes: Boxes, axes: list[Axis], steps: Steps) -> None:
        """Adds thresholds between the middle of a box and a side of it, right beside which the code does otherwise."""
        middle, changes = boxes.middle, []
        for stream, offset in axes:
            low, high = boxes.low[stream, :, offset], boxes.high[stream, :, offset]
            wide = high - low > 4 * SAME
            for beside in (low + SAME, high - SAME):
                points = middle.clone()
                points[stream, :, offset] = torch.where(wide, beside, middle[stream, :, offset])
                other = (self.inject(points).visible != steps.visible).any(dim=1).nonzero()[:, 0]
                changes.append((other, points[:, other], torch.tensor([[stream, offset]]).repeat(len(other), 1)))
        if changes:
            boxed, points, axis = (
                torch.cat(parts, dim) for parts, dim in zip(zip(*changes, strict=True), (0, 1, 0), strict=True)
            )
            self._bisect(middle[:, boxed], points, axis, boxes.owner[boxed])


def _hints(fixture: Fixture, path: DraftIntervals, of_code: Rule) -> Cuts:
    """Where the thresholds of the rules lie whose formulas are known, and those of drawing from the target's rows."""
    drafts = drafts_of(fixture, torch.tensor([path.tokens], dtype=torch.int64))
    edges: Cuts = {}
    for i, row in enumerate(drafts.p[0]):
        own = row.cumsum(0)[:-1].tolist()
        edges[int(Stream.EMIT), i] = list(own)
        edges[int(Stream.DRAFT), i] = list(own)
    for rule in dict.fromkeys([*rules_with_formulas().values(), of_code]):
        if not rule.has_law:
            continue
        law = law_of(rule, drafts)
        for i, threshold in enumerate(law.accept[0].tolist()):
            edges.setdefault((int(Stream.ACCEPT), i), []).append(threshold)
        edges[int(Stream.EMIT), 0] += law.emit[0].cumsum(-1)[:, :-1].flatten().tolist()
    return edges
