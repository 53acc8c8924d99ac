"""Sample-match and coupled verification: the target draws a token, and a drafted token is accepted if it is the same.

Every emitted token is the target's own draw, whatever the draft is, so both are lossless by construction. They are
controls: every test of losslessness must pass them. With its own uniforms the target accepts a drafted token with
probability sum p q. With the drafter's uniforms (coupled: the maximum of Gumbel noise in arXiv 2408.07978, the inverse
distribution function here) the two draws agree far more often. Shared noise would bias a rule that tests p against q.
"""

from __future__ import annotations

import torch
from jaxtyping import Int64
from torch import Tensor

from specbench.core import arguments
from specbench.core.rng import Stream, Streams
from specbench.core.types import Draft, LogitRows, Verification
from specbench.rules import batched
from specbench.sampling import inverse_cdf


class MatchingVerifier:
    """Batched PyTorch.

    Args:
        coupled: draw the target's tokens with the uniforms that drew the draft; those of EMIT if nothing was drafted.
    """

    lossless = True

    def __init__(self, coupled: bool):
        self.stream = Stream.DRAFT if coupled else Stream.EMIT
        self.rule = "coupled" if coupled else "sample_match"

    def verify(self, draft: Draft, target: LogitRows, streams: Streams) -> Verification:
        """See :class:`specbench.rules.verifier.Verifier`; the target's token i is drawn with offset i of the stream."""
        arguments.check(draft, target, streams)
        drawn = self._target_tokens(draft, target, streams)
        same = drawn[batched.target_row_of(draft)] == draft.token_ids
        num_accepted = batched.padded(same, draft, False).cumprod(dim=1).sum(dim=1)
        return batched.assemble(draft, num_accepted, drawn[batched.target_row_after(draft, num_accepted)])

    def _target_tokens(self, draft: Draft, target: LogitRows, streams: Streams) -> Int64[Tensor, " n_and_B"]:
        counts = draft.num_draft_tokens + 1
        owner = torch.arange(len(counts), device=counts.device).repeat_interleave(counts, output_size=len(target))
        offset = torch.arange(len(target), device=counts.device) - (draft.first_row[owner] + owner)
        uniforms = streams.uniform(self.stream)
        if self.stream is not Stream.EMIT:
            # A request without a draft draws as in a step in which no request has one, which calls no verifier.
            undrafted = (draft.num_draft_tokens == 0)[:, None]
            uniforms = torch.where(undrafted, streams.uniform(Stream.EMIT), uniforms)
        return inverse_cdf(target.probs(), uniforms[owner, offset])
