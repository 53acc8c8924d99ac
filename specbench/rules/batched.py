"""Tensor operations that batched verifiers share: ragged rows as padded arrays, p and q of a request, the output."""

from __future__ import annotations

import torch
from jaxtyping import Float64, Int64, Shaped
from torch import Tensor

from specbench.core.types import PADDING, Draft, LogitRows, Verification


def offsets(draft: Draft) -> Int64[Tensor, " n"]:
    """Returns the offset of each draft row in its block, from 0."""
    rows = torch.arange(len(draft.token_ids), device=draft.token_ids.device)
    return rows % draft.max_draft_tokens if draft.padded else rows - draft.first_row[draft.request_of_row]


def target_row_of(draft: Draft) -> Int64[Tensor, " n"]:
    """Returns the index of the target row that scores each drafted token."""
    requests = draft.request_of_row
    return torch.arange(len(requests), device=requests.device) + requests


def target_row_after(draft: Draft, num_tokens: Int64[Tensor, " B"]) -> Int64[Tensor, " B"]:
    """Returns the index of the target row after the first ``num_tokens`` draft tokens of each request."""
    return draft.first_row + torch.arange(len(num_tokens), device=num_tokens.device) + num_tokens


def of_rows(table: Shaped[Tensor, "B width"], draft: Draft) -> Shaped[Tensor, " n"]:
    """Returns the value of each draft row from a table by request and offset."""
    if draft.padded:
        return table[:, : draft.max_draft_tokens].flatten()
    return table[draft.request_of_row, offsets(draft)]


def padded(values: Shaped[Tensor, " n"], draft: Draft, fill: float | int | bool) -> Shaped[Tensor, "B gamma"]:
    """Returns values of the draft rows by request and offset; ``fill`` at offsets beyond a short draft."""
    shape = (len(draft.num_draft_tokens), draft.max_draft_tokens)
    if draft.padded:
        return torch.where(draft.drafted, values.view(shape), fill)
    out = torch.full(shape, fill, dtype=values.dtype, device=values.device)
    out[draft.request_of_row, offsets(draft)] = values
    return out


def drafted_probs(draft: Draft, target: LogitRows) -> tuple[Float64[Tensor, " n"], Float64[Tensor, " n"]]:
    """Returns p and q of every drafted token; q is 1 if drafts are deterministic."""
    p = target.select(target_row_of(draft)).prob(draft.token_ids)
    return p, torch.ones_like(p) if draft.rows is None else draft.rows.prob(draft.token_ids)


def next_rows(
    draft: Draft, target: LogitRows, num_accepted: Int64[Tensor, " B"]
) -> tuple[Float64[Tensor, "B V"], Float64[Tensor, "B V"]]:
    """Returns dense p and q after the accepted tokens of each request; q is 0 if all were accepted."""
    p = target.select(target_row_after(draft, num_accepted)).probs()
    if len(draft.token_ids) == 0:
        return p, torch.zeros_like(p)
    # If nothing was rejected this row belongs to another request, and is not used.
    row = (draft.first_row + num_accepted).clamp(max=len(draft.token_ids) - 1)
    if draft.rows is None:
        q = torch.zeros_like(p).scatter_(1, draft.token_ids[row][:, None], 1.0)
    else:
        q = draft.rows.select(row).probs()
    return p, torch.where((num_accepted < draft.num_draft_tokens)[:, None], q, 0.0)


def residual(p: Float64[Tensor, "B V"], q: Float64[Tensor, "B V"]) -> Float64[Tensor, "B V"]:
    """Returns max(p - q, 0), not normalised; p if this is 0 everywhere, which rounding causes where p equals q."""
    weights = (p - q).clamp(min=0)
    return torch.where(weights.sum(dim=-1, keepdim=True) == 0, p, weights)  # NaN stays, and cannot be drawn from


def assemble(draft: Draft, num_accepted: Int64[Tensor, " B"], emitted: Int64[Tensor, " B"]) -> Verification:
    """Returns the accepted tokens, then the emitted one, then padding."""
    token_ids = torch.cat([padded(draft.token_ids, draft, PADDING), emitted[:, None]], dim=1)
    columns = torch.arange(draft.max_draft_tokens + 1, device=emitted.device)
    token_ids.scatter_(1, num_accepted[:, None], emitted[:, None])
    return Verification(token_ids.masked_fill_(columns > num_accepted[:, None], PADDING), num_accepted)
