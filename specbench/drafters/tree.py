"""Drafting trees with the pair's small model: several children of a token, drawn without replacement.

A target that refuses one child may accept the next, so that a tree gets further than a chain as deep. Children of one
token are drawn in turn, each from the draft's distribution without the siblings before it, normalised again, so that no
candidate comes twice (Chen et al., "Sequoia", arXiv 2402.12374; Jeon et al., arXiv 2402.14160). The distribution that
a child was drawn from is its row of the draft, which verification reads. At temperature 0 the children are the most
likely tokens, in order. If the sampler leaves fewer tokens than there are children, drawing begins again from all of
them.

Tokens stand level by level. Token i is drawn with uniform i, so that a tree cut by its depth is the beginning of the
whole one.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from specbench.core import trees
from specbench.core.checks import check_count
from specbench.core.errors import ConfigError
from specbench.core.rng import Stream, Streams
from specbench.core.types import Draft, LogitRows
from specbench.drafters.lengths import cut_empty
from specbench.drafters.model import ModelDrafter
from specbench.sampling import draw, reaching
from specbench.sampling.batch import Batch

MOST_TOKENS = 63  # of one request's tree: attention takes 64, of which one is the text's last token


class TreeShape:
    """A tree in which all tokens of a level have the same number of children.

    Args:
        branches: the number of children of the text's end, of each token of the first level, and so on.

    Attributes:
        first: the index of the first token of each level, then the number of tokens.
        parents: of one request, as in Draft.
        seen: the result of :func:`specbench.core.trees.ancestors`.
    """

    def __init__(self, branches: Sequence[int], device: torch.device):
        self.branches = tuple(branches)
        sizes = [math.prod(self.branches[: i + 1]) for i in range(len(self.branches))]
        self.first = [sum(sizes[:i]) for i in range(len(sizes) + 1)]
        above = [-1, *self.first[:-1]]  # the first token of the level above; the text's end above the first level
        parents = [above[i] + place // children for i, children in enumerate(branches) for place in range(sizes[i])]
        self.starts, self.parents = (torch.tensor(numbers, device=device) for numbers in (self.first, parents))
        self.seen = trees.ancestors(self.parents[None], len(self.branches))

    def __len__(self) -> int:
        return self.first[-1]


_shape = functools.cache(TreeShape)  # kept: to make a tensor of numbers waits for a GPU


def children(rows: LogitRows, u: Float64[Tensor, "n k"]) -> tuple[Int64[Tensor, "n k"], LogitRows]:
    """Returns k tokens of each row, drawn without replacement, and the n * k rows that they were drawn from."""
    tokens, drawn_from, left = [], [], rows
    for j in range(u.shape[1]):
        if j > 0:
            left = _without(left, tokens[-1], rows)
        token, drawn = draw(left, u[:, j])
        # A row with NaN has no token. The verifier reads its normaliser, and the decoder reports the model.
        tokens.append(token.clamp(min=0))
        drawn_from.append(drawn)
    return torch.stack(tokens, dim=1), LogitRows.interleave(drawn_from)


def _without(left: LogitRows, tokens: Int64[Tensor, " n"], rows: LogitRows) -> LogitRows:
    """Returns what is left of rows without a token of each; all of a row if nothing is."""
    logits = left.logits.scatter(1, tokens[:, None], -math.inf)
    drawable = (logits > -math.inf) & ((logits >= rows.cutoff[:, None]) | (rows.temperature == 0)[:, None])
    logits = torch.where(drawable.any(dim=1, keepdim=True), logits, rows.logits)
    return LogitRows(logits, rows.temperature, rows.cutoff, None)


class TreeDrafter(ModelDrafter):
    """Samples trees from the draft model under the same sampling parameters as the target's.

    Args:
        branches: the number of children of each token of a level, the text's end first. gamma is the depth of the
            tree: levels beyond the list have one child a token, and a list of more than gamma levels is refused.
    """

    drafts_trees = True

    def __init__(self, branches: Sequence[int]):
        super().__init__()
        if isinstance(branches, str) or not isinstance(branches, Sequence) or not branches:
            raise ConfigError("drafter.branches", branches, "not a list of counts", "Use a list such as [2,2,1,1].")
        self.branches = tuple(check_count("drafter.branches", count) for count in branches)
        self._check_size(self.branches)

    def most_tokens(self, gamma: int) -> int:
        if 0 < gamma < len(self.branches):
            problem = f"{len(self.branches)} levels, but gamma={gamma} leaves room for {gamma} on a path"
            remedy = f"Use gamma={len(self.branches)} or more, or a list of {gamma} numbers."
            raise ConfigError("drafter.branches", list(self.branches), problem, remedy)
        return self._check_size(self._levels(gamma))

    def propose(self, batch: Batch, limits: Int64[Tensor, " B"], streams: Streams) -> Draft:
        device, depth = batch.lengths.device, streams.width - 1
        if depth == 0:
            return Draft.empty(len(batch), device)
        shape = _shape(self._levels(depth), device)
        seen = shape.seen.expand(len(batch), -1, -1)
        uniforms = reaching(streams, len(shape) + 1).uniform(Stream.DRAFT)
        tokens, rows = batch.tokens[:, :0], []
        logits = self._logits_after(batch)[:, None]
        on_path = seen[:, :1, :0]  # the tokens on the path to each token whose children are drawn
        for level, branches in enumerate(shape.branches):
            start, end = shape.first[level], shape.first[level + 1]
            q = batch.rows_of_tree(logits.flatten(0, 1), tokens, on_path, level)
            if self._bound_model.lacks_tokens:
                limits = cut_empty(q, limits, level)
            drawn, drawn_from = children(self._drawn_from(q), uniforms[:, start:end].reshape(-1, branches))
            rows.append(drawn_from)
            tokens = torch.cat([tokens, drawn.view(len(batch), -1)], dim=1)
            if end < len(shape):
                fed, on_path = torch.full_like(batch.lengths, end - start), seen[:, start:end, :end]
                logits = self._bound_model.extend(tokens[:, start:], fed, on_path).logits
        return Draft(
            tokens.flatten(),
            _joined(rows, len(batch)),
            shape.starts[limits],
            len(shape),
            padded=True,
            parents=shape.parents.repeat(len(batch)),
            depth=depth,
        )

    def _drawn_from(self, q: LogitRows) -> LogitRows:
        """Returns the distributions of first children, from those of the draft model."""
        return q

    def _levels(self, depth: int) -> tuple[int, ...]:
        return (self.branches + (1,) * depth)[:depth]

    def _check_size(self, branches: Sequence[int]) -> int:
        size = sum(math.prod(branches[: i + 1]) for i in range(len(branches)))
        if size > MOST_TOKENS:
            remedy = "Use smaller numbers: level i has as many tokens as the product of the first i of them."
            raise ConfigError("drafter.branches", list(branches), f"more than {MOST_TOKENS} tokens", remedy)
        return size


class TopTreeDrafter(TreeDrafter):
    """Drafts the most likely children of each token at any temperature, as EAGLE does (Li et al., arXiv 2401.15077).

    Each child has q 1, and is accepted with its share of the target's probability that earlier siblings left. This is
    lossless too (tests/rules/test_tree_rule.py). The sampler's temperature and truncation do not change the draft.

    Args:
        branches: see :class:`TreeDrafter`.
    """

    has_probabilities = False

    def _drawn_from(self, q: LogitRows) -> LogitRows:
        everything = torch.full_like(q.cutoff, -math.inf)
        return LogitRows(q.logits, torch.zeros_like(q.temperature), everything, None)


def _joined(levels: Sequence[LogitRows], batch: int) -> LogitRows:
    """Returns the rows of all levels; those of a request are consecutive."""
    logits, temperature, cutoff, normalizer = (
        torch.cat([getattr(rows, name).unflatten(0, (batch, -1)) for rows in levels], dim=1).flatten(0, 1)
        for name in ("logits", "temperature", "cutoff", "normalizer")
    )
    return LogitRows(logits, temperature, cutoff, normalizer)
