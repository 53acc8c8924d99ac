"""Bugs of what precedes a position: penalties, min_tokens and bitmasks that go by another text than the position's own.

A verifier is given rows that have all this in them already. So each of these undoes it: on the fixtures with a history
(fixtures/history.py) it makes the rows that the wrong history would have made of the models' logits.
"""

from __future__ import annotations

import dataclasses
import math

import torch
from jaxtyping import Int64
from torch import Tensor

from specbench.core.types import Draft, LogitRows
from specbench.exactness.fixtures.history import PENALTY
from specbench.exactness.zoo.steps import TokenSteps
from specbench.rules import batched


def _first_rows(draft: Draft) -> Int64[Tensor, " m"]:
    """The first target row of the request of each target row."""
    rows = draft.num_draft_tokens + 1
    return (rows.cumsum(0) - rows).repeat_interleave(rows)


def _with(rows: LogitRows, logits: Tensor) -> LogitRows:
    return dataclasses.replace(rows, logits=logits, log_normalizer=None)


class _Penalty(TokenSteps):
    """What the bugs of penalties share: how much each earlier token takes from its logit."""

    def __init__(self, penalty: float = PENALTY):
        self.penalty = penalty


class LostPenalty(_Penalty):
    """Penalties count the text before the block alone: tokens drafted before a position are scored as if they were not.

    vLLM issue 18902; mlx-lm issue 1175, comments (one context for all positions), and sglang PR 22049 (one penalty for
    all, on purpose).

    Args:
        penalty: what the target's logits of such tokens lack.
    """

    def read(self, draft, target, streams):
        logits = target.logits.clone()
        rows, offsets = batched.target_row_of(draft), batched.offsets(draft)
        for back in range(1, draft.max_draft_tokens + 1):
            earlier = (offsets + 1 >= back).nonzero()[:, 0]
            logits[rows[earlier] + 1, draft.token_ids[earlier - back + 1]] += self.penalty
        return draft, _with(target, logits), streams


class PenaltyOfWholeDraft(_Penalty):
    """Penalties count the whole draft at every position, so that a token is penalised for itself and for later ones.

    osaurus-ai/vmlx-swift issue 357: every proposed token is recorded before any of them is verified.

    Args:
        penalty: what the target's logits of such tokens have too little.
    """

    def read(self, draft, target, streams):
        logits = target.logits.clone()
        rows, offsets = batched.target_row_of(draft), batched.offsets(draft)
        for ahead in range(draft.max_draft_tokens):
            later = (offsets >= ahead).nonzero()[:, 0]
            logits[rows[later - ahead], draft.token_ids[later]] -= self.penalty
        return draft, _with(target, logits), streams


class PenaltyOnTargetAlone(_Penalty):
    """Penalties follow the drafted tokens in the target's rows alone: q is read without what its tokens had when drawn.

    A mutant of huggingface/transformers issue 47932. Where the draft is drawn without them as well (NVIDIA/TensorRT-LLM
    PR 17701) nothing is biased, and less is accepted.

    Args:
        penalty: what the draft's logits of such tokens lack.
    """

    def read(self, draft, target, streams):
        if draft.rows is None:
            return draft, target, streams
        logits, offsets = draft.rows.logits.clone(), batched.offsets(draft)
        for back in range(1, draft.max_draft_tokens):
            later = (offsets >= back).nonzero()[:, 0]
            logits[later, draft.token_ids[later - back]] += self.penalty
        return dataclasses.replace(draft, rows=_with(draft.rows, logits)), target, streams


class LateMinTokens(TokenSteps):
    """min_tokens counts the text before the block alone: a stop token that is banned there stays so in the whole block.

    sgl-project/sglang PR 33643 (steps are counted, not tokens); vLLM PR 41768 has one row too many.
    """

    def read(self, draft, target, streams):
        banned = target.logits[_first_rows(draft)] == -math.inf
        return draft, _with(target, target.logits.masked_fill(banned, -math.inf)), streams


class PreviousBitmask(TokenSteps):
    """A grammar's bitmask is that of the position before; the first one of a block is right.

    vLLM PR 44297: positions of a block kept the mask of its start. A token that only the position before allows has its
    logit from there, since nothing else is known of it here.
    """

    def read(self, draft, target, streams):
        rows = torch.arange(len(target), device=target.logits.device)
        before = target.logits[torch.maximum(rows - 1, _first_rows(draft))]
        logits = torch.where(target.logits == -math.inf, before, target.logits)
        return draft, _with(target, logits.masked_fill(before == -math.inf, -math.inf)), streams
