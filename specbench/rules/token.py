"""The token rule: each drafted token stands with probability min(1, p / q), up to the first that is refused.

Leviathan et al., "Fast inference from transformers via speculative decoding" (arXiv 2211.17192), algorithm 1. A refused
token is replaced by one from max(p - q, 0); verifiers/naive.py has the rule as the papers write it. In a tree the next
candidate is tried against what a refusal leaves (its card, and verifiers/tree_naive.py).
"""

from __future__ import annotations

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from specbench.core.rng import Stream, Streams
from specbench.core.types import Draft, LogitRows
from specbench.rules import cards
from specbench.rules.along import Along
from specbench.rules.rule import Rule
from specbench.verifiers import batched
from specbench.verifiers.masked import MaskedVerifier


def thresholds(along: Along) -> Float64[Tensor, "m gamma"]:
    """min(1, p / q)."""
    return along.ratio.clamp(max=1)


def decision_errors(
    draft: Draft, target: LogitRows, streams: Streams, accepted: Int64[Tensor, " B"]
) -> Float64[Tensor, " B"]:
    """The largest error that a decision up to the first rejection needs: u q against p."""
    p, q = (batched.padded(each, draft, 1.0) for each in batched.drafted_probs(draft, target))
    threshold = streams.uniform(Stream.ACCEPT)[:, : draft.max_draft_tokens] * q
    short = (threshold - p) / torch.maximum(threshold, p)  # by how much p falls short of being accepted
    places = torch.arange(draft.max_draft_tokens, device=p.device)
    rejected = (places == accepted[:, None]) & (accepted < draft.num_draft_tokens)[:, None]
    wrong_by = torch.where(places < accepted[:, None], short, torch.where(rejected, -short, 0.0)).clamp(min=0)
    # u q = p is a rejection: accepting there needs an error, if only the smallest one.
    equal = (places < accepted[:, None]) & (short == 0)
    wrong_by = wrong_by.masked_fill(equal, torch.finfo(torch.float64).eps)
    return wrong_by.amax(dim=1) if draft.max_draft_tokens else wrong_by.new_zeros(len(accepted))


TOKEN = Rule.of(cards.TOKEN, thresholds=thresholds, decision_errors=decision_errors, reference=MaskedVerifier())
