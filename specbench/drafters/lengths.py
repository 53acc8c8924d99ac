"""How many tokens each request drafts, decided as the draft goes by a policy of specbench/core/draft_lengths.py.

Counts are a tensor and change by masks, so that nothing waits for the device and a CUDA graph can hold them. Whoever
may read the device asks :func:`over`, and spares the passes of the draft model that nobody needs.

At temperature 0 every draft is certain: its probability is 1, its entropy 0. How sure the draft is of it is read at
temperature 1 there, as transformers does.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Int64
from torch import Tensor

from specbench.core.draft_lengths import LengthPolicy
from specbench.core.types import LogitRows


def cut_before(policy: LengthPolicy, q: LogitRows, counts: Int64[Tensor, " B"], i: int) -> Int64[Tensor, " B"]:
    """The counts without token i where the policy does not let it be drafted.

    Args:
        q: what token i would be drawn from.
        counts: tokens that each request drafts, at most.
    """
    if policy.kind != "entropy":
        return counts
    entropy = torch.special.entr(_confidence(q).probs()).sum(dim=-1)
    return torch.where(policy.enters(entropy), counts, counts.clamp(max=i))


def cut_behind(
    policy: LengthPolicy, q: LogitRows, tokens: Int64[Tensor, " B"], counts: Int64[Tensor, " B"], i: int
) -> Int64[Tensor, " B"]:
    """The counts without what is behind token i where the policy lets nothing follow it.

    Args:
        q: what token i was drawn from.
        tokens: token i of each request.
    """
    if policy.kind != "probability":
        return counts
    probability = _confidence(q).prob(tokens)
    return torch.where(policy.goes_on(probability), counts, counts.clamp(max=i + 1))


def over(policy: LengthPolicy, counts: Int64[Tensor, " B"], i: int) -> bool:
    """Whether a policy lets nobody draft token i. Reads the counts, and so waits for the device."""
    return policy.kind != "fixed" and not bool((counts > i).any())


def _confidence(q: LogitRows) -> LogitRows:
    random = q.temperature > 0
    temperature = torch.where(random, q.temperature, 1)
    return LogitRows(q.logits, temperature, torch.where(random, q.cutoff, -math.inf), None)
