"""The block rule: a whole prefix of the draft is accepted at once; verifiers/block.py has the terms.

Sun et al., "Block verification accelerates speculative decoding" (arXiv 2403.10444). The formulas are written again
here, for p and q wherever they come from, so that the code of a verifier is held against other code.
"""

from __future__ import annotations

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from specbench.core.rng import Stream, Streams
from specbench.core.types import Draft, LogitRows
from specbench.rules import cards
from specbench.rules.along import Along
from specbench.rules.rule import LAST_SUCCESS, Rule, positive_part
from specbench.verifiers import block


def prefix_weights(along: Along) -> Float64[Tensor, "m width"]:
    """pi_0 ... pi_gamma."""
    ratio = along.ratio
    pi = [torch.ones_like(ratio.sum(dim=1))]
    for i in range(ratio.shape[1]):
        pi.append((pi[-1] * ratio[:, i]).clamp(max=1))
    return torch.stack(pi, 1)


def thresholds(along: Along) -> Float64[Tensor, "m gamma"]:
    """h_1 ... h_gamma; h at the end of each draft is its pi."""
    pi, h = prefix_weights(along), []
    for i in range(1, pi.shape[1]):
        weight = pi[:, i]
        if i < pi.shape[1] - 1:
            p, q = along.rows_after(torch.full_like(along.counts, i))
            mass = positive_part(weight[:, None] * p, q).sum(dim=1)
            total = mass + 1 - weight
            inner = torch.where(total > 0, mass / torch.where(total > 0, total, 1.0), 1.0)
            h.append(torch.where(along.counts == i, weight, inner))
        else:
            h.append(weight)
    return torch.stack(h, 1) if h else pi[:, :0]


def decision_errors(
    draft: Draft, target: LogitRows, streams: Streams, accepted: Int64[Tensor, " B"]
) -> Float64[Tensor, " B"]:
    """The largest error that u_i < h_i at i = tau, and u_i >= h_i behind it, need.

    pi_i is a product of i ratios, so an error e of each p / q makes up to i e of it, (i + 2) e of S_i, which is a
    difference of p and q scaled by it, and (i + 2) e / (S_i + 1 - pi_i) of h_i. Where S_i and 1 - pi_i both vanish,
    h_i is 0/0, and any outcome follows from rounding.
    """
    if draft.max_draft_tokens == 0:
        return torch.zeros_like(accepted, dtype=torch.float64)
    weights = block.prefix_weights(draft, target)
    masses = block.residual_masses(draft, target, weights)
    h, total = block.h_values(weights, masses, draft.num_draft_tokens)
    lengths = torch.arange(1, weights.shape[1], device=h.device)
    needed = (streams.uniform(Stream.ACCEPT)[:, : draft.max_draft_tokens] - h) * total / (lengths + 2)
    beyond = (lengths > accepted[:, None]) & (lengths <= draft.num_draft_tokens[:, None])
    return torch.where(lengths == accepted[:, None], needed, torch.where(beyond, -needed, 0.0)).clamp(min=0).amax(dim=1)


BLOCK = Rule.of(
    cards.BLOCK,
    thresholds=thresholds,
    decides=LAST_SUCCESS,
    prefix_weights=prefix_weights,
    decision_errors=decision_errors,
    reference=block.BlockVerifier(),
)
