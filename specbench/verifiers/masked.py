"""Token verification of a whole ragged batch as tensor operations: no loop over requests or positions.

The same rule as naive.py. A mask of accepted tokens is built by a running product along each block; the residual is
computed for the one row a request that needs it; the bonus row is the same row with nothing subtracted.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from specbench.rng import Stream, Streams
from specbench.sampling import inverse_cdf
from specbench.types import PADDING, Draft, LogitRows, Verification, check_shapes


def accepted_mask(draft: Draft, target: LogitRows, streams: Streams) -> Bool[Tensor, "B gamma"]:
    """True where a drafted token and all drafted before it in its block are accepted."""
    requests, offsets = draft.request_of_row, _offsets(draft)
    p = target.select(torch.arange(len(draft.token_ids), device=requests.device) + requests).prob(draft.token_ids)
    q = torch.ones_like(p) if draft.rows is None else draft.rows.prob(draft.token_ids)
    u = streams.uniform(Stream.ACCEPT)[requests, offsets]
    accepted = torch.zeros(
        (len(draft.num_draft_tokens), draft.max_draft_tokens), dtype=torch.bool, device=requests.device
    )
    accepted[requests, offsets] = u * q < p
    return accepted.cumprod(dim=1).bool()


def residual_weights(draft: Draft, target: LogitRows, num_accepted: Int64[Tensor, " B"]) -> Float64[Tensor, "B V"]:
    """Weights of the token after the accepted ones: max(p - q, 0) at a rejection, p where all were accepted."""
    batch = torch.arange(len(num_accepted), device=num_accepted.device)
    p = target.select(draft.first_row + batch + num_accepted).probs()
    rejected = num_accepted < draft.num_draft_tokens
    if len(draft.token_ids) == 0:
        return p
    # Where nothing was rejected the row read is some other request's, and is not used.
    row = (draft.first_row + num_accepted).clamp(max=len(draft.token_ids) - 1)
    if draft.rows is None:
        q = torch.zeros_like(p).scatter_(1, draft.token_ids[row][:, None], 1.0)
    else:
        q = draft.rows.select(row).probs()
    residual = (p - q).clamp(min=0)
    positive = residual.sum(dim=-1) > 0  # zero mass only by rounding, where p equals q
    return torch.where((rejected & positive)[:, None], residual, p)


def _offsets(draft: Draft) -> Int64[Tensor, " n"]:
    rows = torch.arange(len(draft.token_ids), device=draft.token_ids.device)
    return rows - draft.first_row[draft.request_of_row]


class MaskedVerifier:
    """Batched PyTorch, as an engine without a kernel of its own would do it; never waits for the device."""

    lossless = True

    def verify(self, draft: Draft, target: LogitRows, streams: Streams) -> Verification:
        """See :class:`specbench.verifiers.Verifier`."""
        check_shapes(draft, target, len(streams.seeds))
        accepted = accepted_mask(draft, target, streams)
        num_accepted = accepted.sum(dim=1)
        weights = residual_weights(draft, target, num_accepted)
        emitted = inverse_cdf(weights, streams.uniform(Stream.EMIT)[:, 0])

        token_ids = torch.full((len(accepted), draft.max_draft_tokens + 1), PADDING, device=accepted.device)
        token_ids[draft.request_of_row, _offsets(draft)] = draft.token_ids
        columns = torch.arange(draft.max_draft_tokens + 1, device=accepted.device)
        token_ids.masked_fill_(columns >= num_accepted[:, None], PADDING)
        token_ids.scatter_(1, num_accepted[:, None], emitted[:, None])
        return Verification(token_ids, num_accepted)
