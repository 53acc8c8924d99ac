"""Token verification, one request and one token at a time, as the papers write it.

Leviathan et al., "Fast inference from transformers via speculative decoding" (arXiv 2211.17192), algorithm 1; Chen et
al., "Accelerating large language model decoding with speculative sampling" (arXiv 2302.01318), algorithm 2.

Words: p target, q draft; a drafted token is *accepted*, or the *recovered* token is drawn from the residual
max(p - q, 0) in its place; after a block that was accepted whole comes the *bonus* token from p.
"""

from __future__ import annotations

import torch
from jaxtyping import Float64
from torch import Tensor

from specbench.core import arguments
from specbench.core.rng import Stream, Streams
from specbench.core.types import PADDING, Draft, LogitRows, Verification
from specbench.rules.verifier import Limits
from specbench.sampling import inverse_cdf


def verify_one(
    drafted: list[int],
    q: Float64[Tensor, "g V"],
    p: Float64[Tensor, "g1 V"],
    accept_u: list[float],
    emit_u: Float64[Tensor, " 1"],
) -> tuple[list[int], int]:
    """Returns the emitted tokens of one request, and the number of accepted tokens.

    Args:
        drafted: g tokens, drafted[i] drawn from q[i].
        q, p: dense distributions; p has one row more, the bonus row.
        accept_u: g uniforms in (0, 1).
        emit_u: one uniform for the recovered or bonus token.
    """
    for i, token in enumerate(drafted):
        if accept_u[i] * q[i, token] < p[i, token]:
            continue
        residual = (p[i] - q[i]).clamp(min=0)
        if residual.sum() == 0:  # p equals q but for rounding
            residual = p[i]
        recovered = int(inverse_cdf(residual[None], emit_u))
        return [*drafted[:i], recovered], i
    bonus = int(inverse_cdf(p[-1:], emit_u))
    return [*drafted, bonus], len(drafted)


class NaiveVerifier:
    """The reference: easy to check against the paper, slow."""

    rule = "token"
    lossless = True
    takes_padded = True
    limits = Limits(capturable=False)

    def verify(self, draft: Draft, target: LogitRows, streams: Streams) -> Verification:
        arguments.check(draft, target, streams)
        p_rows = target.probs()
        q_rows = draft.probs(p_rows.shape[1])
        counts = draft.num_draft_tokens.tolist()
        token_ids = torch.full((len(counts), draft.max_draft_tokens + 1), PADDING, device=p_rows.device)
        num_accepted = torch.zeros_like(draft.num_draft_tokens)
        for b, (g, first) in enumerate(zip(counts, draft.first_row.tolist(), strict=True)):
            emitted, accepted = verify_one(
                draft.token_ids[first : first + g].tolist(),
                q_rows[first : first + g],
                p_rows[first + b : first + b + g + 1],
                streams.uniform(Stream.ACCEPT)[b, :g].tolist(),
                streams.uniform(Stream.EMIT)[b, :1],
            )
            token_ids[b, : len(emitted)] = torch.tensor(emitted, device=p_rows.device)
            num_accepted[b] = accepted
        return Verification(token_ids, num_accepted)
