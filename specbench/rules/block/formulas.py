"""The formulas of the block rule. They share no code with its verifier, so that each checks the other.

``decision_errors`` alone reads the verifier's terms, because it explains their rounding.
"""

from __future__ import annotations

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from specbench.core.rng import Stream, Streams
from specbench.core.types import Draft, LogitRows
from specbench.rules.block import BLOCK, masked
from specbench.rules.draft_path import DraftPath
from specbench.rules.rule import LAST_SUCCESS, Rule, positive_part


def prefix_weights(path: DraftPath) -> Float64[Tensor, "m width"]:
    """pi_0 ... pi_gamma of each draft."""
    ratio = path.ratio
    pi = [torch.ones_like(ratio.sum(dim=1))]
    for i in range(ratio.shape[1]):
        pi.append((pi[-1] * ratio[:, i]).clamp(max=1))
    return torch.stack(pi, 1)


def thresholds(path: DraftPath) -> Float64[Tensor, "m gamma"]:
    """h_1 ... h_gamma of each draft; the last h of a draft is its pi."""
    pi, h = prefix_weights(path), []
    for i in range(1, pi.shape[1]):
        weight = pi[:, i]
        if i < pi.shape[1] - 1:
            p, q = path.rows_after(torch.full_like(path.counts, i))
            mass = positive_part(weight[:, None] * p, q).sum(dim=1)
            total = mass + 1 - weight
            inner = torch.where(total > 0, mass / torch.where(total > 0, total, 1.0), 1.0)
            is_last = (path.counts == i) | mass.isnan()  # the block ends at a row without a distribution
            h.append(torch.where(is_last, weight, inner))
        else:
            h.append(weight)
    return torch.stack(h, 1) if h else pi[:, :0]


def decision_errors(
    draft: Draft, target: LogitRows, streams: Streams, accepted: Int64[Tensor, " B"]
) -> Float64[Tensor, " B"]:
    """Returns the largest error that u_i < h_i at i = tau and u_i >= h_i after it need.

    pi_i is a product of i ratios, so an error e of each p / q adds up to i e. S_i is a difference of q and p scaled by
    pi_i, with an error of (i + 2) e, and h_i has an error of (i + 2) e / (S_i + 1 - pi_i). Where S_i and 1 - pi_i both
    vanish, h_i is 0/0, and rounding may lead to any outcome.
    """
    if draft.max_draft_tokens == 0:
        return torch.zeros_like(accepted, dtype=torch.float64)
    weights = masked.prefix_weights(draft, target)
    masses = masked.residual_masses(draft, target, weights)
    counts = masked.block_lengths(weights, draft.num_draft_tokens)
    h, total = masked.h_values(weights, masses, counts)
    lengths = torch.arange(1, weights.shape[1], device=h.device)
    needed = (streams.uniform(Stream.ACCEPT)[:, : draft.max_draft_tokens] - h) * total / (lengths + 2)
    beyond = (lengths > accepted[:, None]) & (lengths <= counts[:, None])
    return torch.where(lengths == accepted[:, None], needed, torch.where(beyond, -needed, 0.0)).clamp(min=0).amax(dim=1)


RULE = Rule.of(
    BLOCK,
    thresholds=thresholds,
    decides=LAST_SUCCESS,
    prefix_weights=prefix_weights,
    decision_errors=decision_errors,
    reference=masked.BlockVerifier(),
)
