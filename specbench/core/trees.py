"""Drafts as trees: who stands before whom, and on which path.

A tree of m tokens is given by ``parents``: the index of the token that each one follows, -1 for tokens that follow the
text. A token stands behind its parent. A chain is the tree in which each token follows the one before it.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from specbench.core.errors import ArgumentError

MOST_NODES = 64  # of a tree that attention takes: they are the bits of one integer


def check_nodes(count: int) -> int:
    """Returns the argument; raises ArgumentError for a tree of more tokens than attention takes."""
    if count > MOST_NODES:
        raise ArgumentError(f"ancestors: a tree of {count} tokens; at most {MOST_NODES} can be attended to at once")
    return count


def check_window(window: int | None, nodes: int) -> None:
    """Refuses trees of which an ancestor may lie outside of a sliding window.

    Args:
        window: tokens; None for full attention.
        nodes: of the tree, the text's last token included.

    Raises:
        ArgumentError: a tree of more tokens than the window has.
    """
    if window is not None and window < nodes:
        raise ArgumentError(
            f"window={window}: the model's sliding window is shorter than a tree of {nodes} tokens, the text's last "
            "one included. Lower drafter.branches or gamma, or draft chains (drafter=model verifier=masked)."
        )


def ancestors(parents: Int64[Tensor, "B m"], depth: int) -> Bool[Tensor, "B m m"]:
    """True at [b, i, j] if token j is on the path to token i, the token itself included: what i may attend to.

    Args:
        depth: no path has more tokens.
    """
    batch, m = parents.shape
    identity = torch.eye(m, dtype=torch.bool, device=parents.device).expand(batch, m, m)
    above = parents.clamp(min=0)[:, :, None].expand(batch, m, m)
    seen = identity
    for _ in range(depth - 1):  # a token sees what its parent sees, and itself
        seen = identity | (seen.gather(1, above) & (parents >= 0)[:, :, None])
    return seen


def depths(seen: Bool[Tensor, "B n m"]) -> Int64[Tensor, "B n"]:
    """How many tokens each path has; ``seen`` is of :func:`ancestors`, or some rows of it."""
    return seen.sum(dim=2)


def paths(seen: Bool[Tensor, "B n m"], depth: int) -> Int64[Tensor, "B n depth"]:
    """The tokens on the path to each token, in order, as indices; any index behind the end of a path.

    Args:
        seen: of :func:`ancestors`, or some rows of it.
    """
    place = torch.where(seen, seen.cumsum(dim=2) - 1, depth)  # tokens on no path share the last place
    ancestors = place.new_zeros((*seen.shape[:2], depth + 1))
    ancestors.scatter_(2, place, torch.arange(seen.shape[2], device=seen.device).expand_as(seen))
    return ancestors[:, :, :depth]


def with_root(seen: Bool[Tensor, "B m m"]) -> Bool[Tensor, "B m1 m1"]:
    """The ancestors in the tree with the text's last token before it, which all others descend from."""
    return torch.nn.functional.pad(torch.nn.functional.pad(seen, (0, 0, 1, 0)), (1, 0), value=True)
