"""Ends the drafts of single requests while a batch is drafted, by a policy of specbench/core/draft_lengths.py.

Counts are a tensor and change by masks, so that nothing waits for the device and a CUDA graph can hold them. Code that
may read the device calls :func:`is_over`, and saves the passes of the draft model that no request needs.

At temperature 0 every draft has probability 1 and entropy 0. Policies read both at temperature 1 there, as
transformers does.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Int64
from torch import Tensor

from specbench.core.draft_lengths import LengthPolicy
from specbench.core.types import LogitRows


def cut_before(policy: LengthPolicy, q: LogitRows, counts: Int64[Tensor, " B"], i: int) -> Int64[Tensor, " B"]:
    """Returns the counts without token i where the policy ends the draft before it.

    Args:
        q: the distributions that token i would be drawn from.
        counts: tokens that each request drafts, at most.
    """
    if policy.kind != "entropy":
        return counts
    entropy = torch.special.entr(confidence(q).probs()).sum(dim=-1)
    return torch.where(policy.enters(entropy), counts, counts.clamp(max=i))


def cut_behind(
    policy: LengthPolicy, q: LogitRows, tokens: Int64[Tensor, " B"], counts: Int64[Tensor, " B"], i: int
) -> Int64[Tensor, " B"]:
    """Returns the counts without the tokens after token i where the policy ends the draft behind it.

    Args:
        q: the distributions that token i was drawn from.
    """
    if policy.kind != "probability":
        return counts
    probability = confidence(q).prob(tokens)
    return torch.where(policy.goes_on(probability), counts, counts.clamp(max=i + 1))


def cut_empty(q: LogitRows, counts: Int64[Tensor, " B"], i: int) -> Int64[Tensor, " B"]:
    """Returns the counts without token i, or level i of a tree, where there is nothing to draw it from.

    A draft that lacks tokens of the target has none left where the sampler bans those that it has.

    Args:
        q: the distributions that token i would be drawn from, the same number for each request.
    """
    empty = (q.logits.amax(dim=1) == -math.inf).view(len(counts), -1).any(dim=1)
    return torch.where(empty, counts.clamp(max=i), counts)


def is_over(policy: LengthPolicy, counts: Int64[Tensor, " B"], i: int) -> bool:
    """Returns whether no request drafts token i by this policy. Reads the counts, and so waits for the device."""
    return policy.kind != "fixed" and not bool((counts > i).any())


def confidence(q: LogitRows) -> LogitRows:
    """Returns the distributions that policies read of the draft's: those themselves, at temperature 0 those at 1."""
    random = q.temperature > 0
    temperature = torch.where(random, q.temperature, 1)
    return LogitRows(q.logits, temperature, torch.where(random, q.cutoff, -math.inf), None)
