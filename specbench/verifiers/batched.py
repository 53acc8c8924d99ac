"""What batched PyTorch verifiers share: ragged rows as padded arrays, p and q of one row a request, the output."""

from __future__ import annotations

import torch
from jaxtyping import Float64, Int64, Shaped
from torch import Tensor

from specbench.core.types import PADDING, Draft, LogitRows, Verification


def offsets(draft: Draft) -> Int64[Tensor, " n"]:
    """Each draft row's place in its block, from 0."""
    rows = torch.arange(len(draft.token_ids), device=draft.token_ids.device)
    return rows - draft.first_row[draft.request_of_row]


def target_row_of(draft: Draft) -> Int64[Tensor, " n"]:
    """The target row that scores each drafted token."""
    requests = draft.request_of_row
    return torch.arange(len(requests), device=requests.device) + requests


def padded(values: Shaped[Tensor, " n"], draft: Draft, fill: float | int | bool) -> Shaped[Tensor, "B gamma"]:
    """Values of the draft rows by request and place in the block."""
    shape = (len(draft.num_draft_tokens), draft.max_draft_tokens)
    out = torch.full(shape, fill, dtype=values.dtype, device=values.device)
    out[draft.request_of_row, offsets(draft)] = values
    return torch.where(draft.drafted, out, fill) if draft.padded else out


def drafted_probs(draft: Draft, target: LogitRows) -> tuple[Float64[Tensor, " n"], Float64[Tensor, " n"]]:
    """p and q of every drafted token."""
    p = target.select(target_row_of(draft)).prob(draft.token_ids)
    return p, torch.ones_like(p) if draft.rows is None else draft.rows.prob(draft.token_ids)


def next_rows(
    draft: Draft, target: LogitRows, num_accepted: Int64[Tensor, " B"]
) -> tuple[Float64[Tensor, "B V"], Float64[Tensor, "B V"]]:
    """Dense p and q after the accepted tokens of each request; q is 0 where all were accepted."""
    batch = torch.arange(len(num_accepted), device=num_accepted.device)
    p = target.select(draft.first_row + batch + num_accepted).probs()
    if len(draft.token_ids) == 0:
        return p, torch.zeros_like(p)
    # Where nothing was rejected the row read is some other request's, and is not used.
    row = (draft.first_row + num_accepted).clamp(max=len(draft.token_ids) - 1)
    if draft.rows is None:
        q = torch.zeros_like(p).scatter_(1, draft.token_ids[row][:, None], 1.0)
    else:
        q = draft.rows.select(row).probs()
    return p, torch.where((num_accepted < draft.num_draft_tokens)[:, None], q, 0.0)


def residual(p: Float64[Tensor, "B V"], q: Float64[Tensor, "B V"]) -> Float64[Tensor, "B V"]:
    """max(p - q, 0), or p where nothing is left: zero mass comes only by rounding, where p equals q."""
    weights = (p - q).clamp(min=0)
    return torch.where(weights.sum(dim=-1, keepdim=True) == 0, p, weights)  # NaN stays, and cannot be drawn from


def assemble(draft: Draft, num_accepted: Int64[Tensor, " B"], emitted: Int64[Tensor, " B"]) -> Verification:
    """The accepted tokens, then the emitted one, then padding."""
    token_ids = torch.full((len(emitted), draft.max_draft_tokens + 1), PADDING, device=emitted.device)
    token_ids[draft.request_of_row, offsets(draft)] = draft.token_ids
    columns = torch.arange(draft.max_draft_tokens + 1, device=emitted.device)
    token_ids.masked_fill_(columns >= num_accepted[:, None], PADDING)
    token_ids.scatter_(1, num_accepted[:, None], emitted[:, None])
    return Verification(token_ids, num_accepted)
