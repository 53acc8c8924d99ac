"""Sample-match and coupled verification: the target draws its own token, and a drafted one stands where it is the same.

Whatever the draft is, every emitted token is the target's own draw, so both are lossless by construction: controls that
any test of losslessness must let pass. With uniforms of its own a drafted token is accepted with probability sum p q.
With the drafter's (coupled: the maximum of Gumbel noise in arXiv 2408.07978, the inverse distribution function here)
the two draws agree far more often, although noise is shared, which biases every rule that tests p against q.
"""

from __future__ import annotations

from jaxtyping import Int64
from torch import Tensor

from specbench.core import arguments
from specbench.core.rng import Stream, Streams
from specbench.core.types import Draft, LogitRows, Verification
from specbench.sampling import inverse_cdf
from specbench.verifiers import batched


class MatchingVerifier:
    """Batched PyTorch.

    Args:
        coupled: draw the target's tokens with the uniforms that drew the draft.
    """

    lossless = True

    def __init__(self, coupled: bool):
        self.stream = Stream.DRAFT if coupled else Stream.EMIT
        self.rule = "coupled" if coupled else "sample_match"

    def verify(self, draft: Draft, target: LogitRows, streams: Streams) -> Verification:
        """See :class:`specbench.verifiers.Verifier`; the target's token i is drawn with offset i of the stream."""
        arguments.check(draft, target, streams)
        own = self._own_tokens(draft, target, streams)
        same = own[batched.target_row_of(draft)] == draft.token_ids
        num_accepted = batched.padded(same, draft, False).cumprod(dim=1).sum(dim=1)
        batch = num_accepted.new_tensor(range(len(num_accepted)))
        return batched.assemble(draft, num_accepted, own[draft.first_row + batch + num_accepted])

    def _own_tokens(self, draft: Draft, target: LogitRows, streams: Streams) -> Int64[Tensor, " n_and_B"]:
        counts = draft.num_draft_tokens + 1
        owner = counts.new_tensor(range(len(counts))).repeat_interleave(counts, output_size=len(target))
        offset = counts.new_tensor(range(len(target))) - (draft.first_row[owner] + owner)
        return inverse_cdf(target.probs(), streams.uniform(self.stream)[owner, offset])
