"""Is code that follows a rule lossless on trees? Summed over all trees of small fixtures. No Monte Carlo.

``code_error`` runs a verifier: a request for each tree and each box of uniforms in which the rule decides alike, at
points close to the box's corners, so that code which decides otherwise anywhere near a threshold is seen. What the
boxes weigh, by the rule's formulas, is the law of the code. It is completed with the target and compared with it, as
laws.py does for chains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, product

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from specbench.core.rng import Stream
from specbench.core.types import Draft, LogitRows
from specbench.exactness.enumeration.laws import Ends, joint_tv, prefixes
from specbench.exactness.fixtures import Fixture
from specbench.exactness.streams import GivenStreams
from specbench.rules.draft_path import DraftPathTables
from specbench.rules.rule import Rule
from specbench.rules.verifier import Verifier

# What the next child of a token is drawn from: q, and the children drawn before it -> a distribution.
Drawing = Callable[[Tensor, Sequence[int]], Tensor]
INSIDE = 1e-9  # how far from the edges of a box its points are
_BOXES = 200_000  # requests of one call


def without_replacement(q: Float64[Tensor, " V"], before: Sequence[int]) -> Float64[Tensor, " V"]:
    """q without the children before, or q again if nothing else is left of it."""
    left = q.clone()
    left[list(before)] = 0
    return left / left.sum() if left.sum() > 0 else q


def independently(q: Float64[Tensor, " V"], before: Sequence[int]) -> Float64[Tensor, " V"]:
    """q, whatever was drawn before."""
    return q


def most_likely(q: Float64[Tensor, " V"], before: Sequence[int]) -> Float64[Tensor, " V"]:
    """1 at the most likely token that is not among the children before."""
    left = q.clone()
    left[list(before)] = -1
    return torch.nn.functional.one_hot(left.argmax(), len(q)).double()


@dataclass(frozen=True)
class Siblings:
    """Children of one token, in order: the tokens, what each was drawn from, and how likely they are together."""

    tokens: tuple[int, ...]
    drawn_from: tuple[Tensor, ...]
    weight: float


def all_siblings(q: Float64[Tensor, " V"], count: int, drawing: Drawing) -> list[Siblings]:
    """Every way to draw ``count`` children of a token."""
    ways = [Siblings((), (), 1.0)]
    for _ in range(count):
        longer = []
        for way in ways:
            row = drawing(q, way.tokens)
            for token in row.nonzero()[:, 0].tolist():
                weight = way.weight * float(row[token])
                longer.append(Siblings((*way.tokens, token), (*way.drawn_from, row), weight))
        ways = longer
    return ways


@dataclass(frozen=True)
class NodeLaw:
    """The probabilities of a rule's outcomes for k candidates of one position, in P cases.

    Attributes:
        accept: [P, k], the probability that the earlier candidates are rejected and this one is accepted.
        emit: [P, V], the probability that all are rejected and this token is drawn in their place.
    """

    accept: Float64[Tensor, "P k"]
    emit: Float64[Tensor, "P V"]


def node_law(
    rule: Rule, p: Float64[Tensor, "P V"], q: Float64[Tensor, "P k V"], tokens: Int64[Tensor, "P k"]
) -> NodeLaw:
    """Returns the law of a rule for the children of one token of a tree, from its formulas for drafts of one token.

    A rejected child leaves the rule's residual, normalised, to the next child, and the last one to the draw.

    Args:
        rule: a rule of trees.
        p: the target's distribution after the parent.
        q: the distribution that each child was drawn from, given its earlier siblings.
        tokens: the children, in the order in which they were drawn.
    """
    row, one = torch.arange(len(p), device=p.device)[:, None], torch.ones_like(tokens[:, 0])
    left, rejected, accept = p, torch.ones_like(p[:, 0]), []
    for j in range(tokens.shape[1]):
        path = DraftPathTables(left, q[:, j], torch.cat([row, row], 1), row, tokens[:, j : j + 1], one)
        passes = rule.limits(path)[:, 0]
        accept.append(rejected * passes)
        rejected = rejected * (1 - passes)
        rest = rule.residual(left, q[:, j])
        mass = rest.sum(dim=1, keepdim=True)
        left = torch.where(mass > 0, rest / mass, left)
    return NodeLaw(torch.stack(accept, 1), rejected[:, None] * left)


@dataclass(frozen=True)
class TreeDraft:
    """One tree of a fixture, its tokens level by level.

    Attributes:
        tokens, parents: as in Draft.
        drawn_from: of each token.
        rows: the fixture's rows after the text and after each token.
        levels: the length of the path to each of these.
        weight: probability of drafting the tree.
    """

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    drawn_from: tuple[Tensor, ...] = ()
    rows: tuple[int, ...] = (0,)
    levels: tuple[int, ...] = (0,)
    weight: float = 1.0

    def with_children(self, fixture: Fixture, place: int, siblings: Siblings) -> TreeDraft:
        """The tree with children of the text's end (place 0) or of its token ``place - 1``, behind all others."""
        level, count = self.levels[place], len(siblings.tokens)
        state = (self.rows[place] - fixture.first_row[level]) * fixture.vocabulary
        first = fixture.first_row[level + 1] + state
        return TreeDraft(
            (*self.tokens, *siblings.tokens),
            (*self.parents, *[place - 1] * count),
            (*self.drawn_from, *siblings.drawn_from),
            (*self.rows, *(first + token for token in siblings.tokens)),
            (*self.levels, *[level + 1] * count),
            self.weight * siblings.weight,
        )


def all_trees(fixture: Fixture, branches: Sequence[int], drawing: Drawing) -> list[TreeDraft]:
    """Every tree that may be drafted, with its probability."""
    trees = [TreeDraft()]
    for level, count in enumerate(branches):
        first, states = fixture.first_row[level], fixture.states[level]
        siblings = {row: all_siblings(fixture.q[row], count, drawing) for row in range(first, first + states)}
        grown = []
        for tree in trees:
            above = [place for place, its in enumerate(tree.levels) if its == level]
            for chosen in product(*(siblings[tree.rows[place]] for place in above)):
                longer = tree
                for place, its in zip(above, chosen, strict=True):
                    longer = longer.with_children(fixture, place, its)
                grown.append(longer)
        trees = grown
    return trees


@dataclass(frozen=True)
class Box:
    """Uniforms for which a rule decides alike on one tree.

    Attributes:
        accept: the interval of each token that is tested.
        emit: the interval of the uniform that draws the last token.
    """

    accept: dict[int, tuple[float, float]] = field(default_factory=dict)
    emit: tuple[float, float] = (0.0, 1.0)

    @property
    def volume(self) -> float:
        """The probability of its uniforms."""
        size = self.emit[1] - self.emit[0]
        for low, high in self.accept.values():
            size *= high - low
        return size


def boxes(rule: Rule, fixture: Fixture, tree: TreeDraft) -> Iterator[Box]:
    """The boxes of one tree, by the rule's formulas; together they are all uniforms."""
    return _boxes_below(rule, fixture, tree, 0, {})


def _boxes_below(
    rule: Rule, fixture: Fixture, tree: TreeDraft, place: int, accept: dict[int, tuple[float, float]]
) -> Iterator[Box]:
    """The boxes of the steps that reach a place of the tree with these intervals."""
    children = [i for i, parent in enumerate(tree.parents) if parent == place - 1]
    p, left, reached = fixture.p[tree.rows[place]], fixture.p[tree.rows[place]], 1.0
    if children:
        q = torch.stack([tree.drawn_from[i] for i in children])
        tokens = torch.tensor([tree.tokens[i] for i in children])
        law = node_law(rule, p[None], q[None], tokens[None])
        left = law.emit[0]
        for i, passed in zip(children, law.accept[0].tolist(), strict=True):
            threshold = min(passed / reached, 1.0) if reached > 0 else 0.0
            if threshold > 0:
                yield from _boxes_below(rule, fixture, tree, i + 1, {**accept, i: (0.0, threshold)})
            if threshold > 1 - 4 * INSIDE:
                return
            accept, reached = {**accept, i: (threshold, 1.0)}, reached - passed
    edges = [0.0, *(left.cumsum(0) / left.sum()).tolist()]
    edges[-1] = 1.0
    for low, high in pairwise(edges):
        if high > low:
            yield Box(accept, (low, high))


def code_error(verifier: Verifier, rule: Rule, fixture: Fixture, branches: Sequence[int], drawing: Drawing) -> float:
    """Total variation of the joint of a verifier's steps on trees from the target's.

    Each box is entered near its lowest corner, near its highest and in its middle, and each of the three has a law of
    its own; the largest error counts.

    Args:
        rule: the one that the verifier follows, which says where the thresholds are to be looked for.
        fixture: one variant, of whole prefixes; its gamma is the depth of the tree.
    """
    trees = all_trees(fixture, branches, drawing)
    every = [(tree, box) for tree in trees for box in boxes(rule, fixture, tree) if box.volume > 0]
    errors = []
    for corner in (INSIDE, 0.5, 1 - INSIDE):
        sums = [torch.zeros(fixture.vocabulary ** (i + 1), dtype=torch.float64) for i in range(len(branches) + 1)]
        for first in range(0, len(every), _BOXES):
            _count(verifier, fixture, every[first : first + _BOXES], corner, sums)
        errors.append(joint_tv(fixture, sums))
    return max(errors)


Every = Sequence[tuple[TreeDraft, Box]]


def _count(verifier: Verifier, fixture: Fixture, every: Every, corner: float, sums: Ends) -> None:
    points = uniforms(every, corner)
    draft, target = arguments_of(fixture, [tree for tree, _ in every])
    result = verifier.verify(draft, target, GivenStreams.of(points))
    weight = torch.tensor([tree.weight * box.volume for tree, box in every], dtype=torch.float64)
    numbers = prefixes(result.token_ids.clamp(min=0), fixture.vocabulary)
    for length in range(len(sums)):
        rows = result.num_accepted == length
        sums[length].index_add_(0, numbers[rows, length + 1], weight[rows])


def uniforms(every: Every, corner: float) -> Float64[Tensor, "streams B width"]:
    """A point in each box, so far from its lowest corner to its highest; what is not tested gets any numbers."""
    width = len(every[0][0].tokens) + 1
    points = torch.rand((len(Stream), len(every), width), generator=torch.Generator().manual_seed(0)).double()
    points = points.clamp(INSIDE, 1 - INSIDE)
    for b, (_, box) in enumerate(every):
        for i, (low, high) in box.accept.items():
            points[Stream.ACCEPT, b, i] = low + corner * (high - low)
        low, high = box.emit
        points[Stream.EMIT, b, 0] = low + corner * (high - low)
    return points


def arguments_of(fixture: Fixture, trees: Sequence[TreeDraft]) -> tuple[Draft, LogitRows]:
    """The trees as a draft, with the fixture's rows of the target."""
    q = torch.stack([row for tree in trees for row in tree.drawn_from])
    one, nothing = torch.ones(len(q), dtype=torch.float64), torch.zeros(len(q), dtype=torch.float64)
    draft = Draft(
        torch.tensor([token for tree in trees for token in tree.tokens]),
        LogitRows(q.log(), one, -torch.inf * one, nothing),
        torch.tensor([len(tree.tokens) for tree in trees]),
        len(trees[0].tokens),
        parents=torch.tensor([parent for tree in trees for parent in tree.parents]),
        depth=max(trees[0].levels),
    )
    return draft, fixture.target.select(torch.tensor([row for tree in trees for row in tree.rows]))
