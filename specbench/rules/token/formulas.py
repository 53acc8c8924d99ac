"""The formulas of the token rule."""

from __future__ import annotations

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from specbench.core.rng import Stream, Streams
from specbench.core.types import Draft, LogitRows
from specbench.rules import batched
from specbench.rules.draft_path import DraftPath
from specbench.rules.rule import Rule
from specbench.rules.token import TOKEN
from specbench.rules.token.masked import MaskedVerifier


def thresholds(path: DraftPath) -> Float64[Tensor, "m gamma"]:
    """min(1, p / q)."""
    return path.ratio.clamp(max=1)


def decision_errors(
    draft: Draft, target: LogitRows, streams: Streams, accepted: Int64[Tensor, " B"]
) -> Float64[Tensor, " B"]:
    """Returns the largest error that a decision up to the first rejection needs: u q against p."""
    p, q = (batched.padded(values, draft, 1.0) for values in batched.drafted_probs(draft, target))
    threshold = streams.uniform(Stream.ACCEPT)[:, : draft.max_draft_tokens] * q
    short = (threshold - p) / torch.maximum(threshold, p)  # relative distance by which p is too small to accept
    places = torch.arange(draft.max_draft_tokens, device=p.device)
    rejected = (places == accepted[:, None]) & (accepted < draft.num_draft_tokens)[:, None]
    wrong_by = torch.where(places < accepted[:, None], short, torch.where(rejected, -short, 0.0)).clamp(min=0)
    # u q = p is a rejection: accepting there needs an error, if only the smallest one.
    equal = (places < accepted[:, None]) & (short == 0)
    wrong_by = wrong_by.masked_fill(equal, torch.finfo(torch.float64).eps)
    return wrong_by.amax(dim=1) if draft.max_draft_tokens else wrong_by.new_zeros(len(accepted))


RULE = Rule.of(TOKEN, thresholds=thresholds, decision_errors=decision_errors, reference=MaskedVerifier())
