"""The tokens that a rule emits for a call of D, from its formulas and float64 probabilities. No verifier's code."""

from __future__ import annotations

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from specbench.core.rng import Stream
from specbench.core.types import Verification
from specbench.exactness.enumeration.reference import outcome
from specbench.exactness.inputs.call import Call
from specbench.rules.draft_path import DraftPath
from specbench.rules.rule import Rule


class CallPath(DraftPath):
    """p and q along the drafts of a call; places behind a short draft have p = q = 1.

    Attributes:
        tokens: [B, gamma], the draft tokens, 0 behind a short draft.
        q_row: [B, gamma], the draft's row at each place.
    """

    def __init__(self, call: Call):
        self.call, self.counts = call, call.counts
        gamma, device = call.draft.max_draft_tokens, call.counts.device
        places = torch.arange(gamma, device=device)
        own, first = places < self.counts[:, None], self.counts.cumsum(0) - self.counts
        self.first_p = first + torch.arange(len(first), device=device)
        self.q_row = torch.where(own, first[:, None] + places, 0)
        ids = call.draft.token_ids
        if call.draft.padded:
            self.tokens = torch.where(own, ids.view(len(first), gamma), 0)
        else:
            self.tokens = torch.where(own, ids[self.q_row] if len(ids) else 0, 0)
        p_row = torch.where(own, self.first_p[:, None] + places, 0)
        self.drafted_p = torch.where(own, _prob(call.p, p_row, self.tokens), 1.0)
        self.drafted_q = self.drafted_p.new_ones(own.shape)
        if call.q is not None and len(call.q.totals):
            self.drafted_q = torch.where(own, _prob(call.q, self.q_row, self.tokens), 1.0)

    def rows_after(self, num_tokens: Int64[Tensor, " m"]) -> tuple[Float64[Tensor, "m V"], Float64[Tensor, "m V"]]:
        """See :class:`DraftPath`; q is 0 after a whole draft."""
        num_tokens = num_tokens.minimum(self.counts)
        p, inside = self.call.p.probs(self.first_p + num_tokens), num_tokens < self.counts
        q = torch.zeros_like(p)
        if bool(inside.any()):
            place = num_tokens.clamp(max=self.tokens.shape[1] - 1)[:, None]
            if self.call.q is None:
                q.scatter_(1, self.tokens.gather(1, place), inside.double()[:, None])
            else:
                own = inside.nonzero()[:, 0]
                q[own] = self.call.q.probs(self.q_row.gather(1, place)[own, 0])
        return p, q


def _prob(rows, row: Int64[Tensor, "B gamma"], tokens: Int64[Tensor, "B gamma"]) -> Float64[Tensor, "B gamma"]:
    return rows.prob(row.flatten(), tokens.flatten()).view(tokens.shape)


def expected(rule: Rule, call: Call, path: CallPath | None = None) -> Verification:
    """The outcome of a rule whose formulas are known.

    Args:
        path: of the call, if it is at hand.
    """
    path = path or CallPath(call)
    u = call.streams.uniform(Stream.ACCEPT)[:, : call.draft.max_draft_tokens]
    return outcome(rule, path, path.tokens, u, call.streams.uniform(Stream.EMIT)[:, 0])
