"""Token verification of a whole ragged batch as tensor operations: no loop over requests or positions.

The rule of naive.py. A running product along each block gives the mask of accepted tokens. The residual is computed for
one row of each request; for the bonus token nothing is subtracted from it.
"""

from __future__ import annotations

from jaxtyping import Bool
from torch import Tensor

from specbench.core import arguments
from specbench.core.rng import Stream, Streams
from specbench.core.types import Draft, LogitRows, Verification
from specbench.kernels import cpu_rows
from specbench.rules import batched
from specbench.sampling import inverse_cdf


def accepted_mask(draft: Draft, target: LogitRows, streams: Streams) -> Bool[Tensor, "B gamma"]:
    """Returns True for each drafted token that is accepted with all tokens before it in its block."""
    p, q = batched.drafted_probs(draft, target)
    u = batched.of_rows(streams.uniform(Stream.ACCEPT), draft)
    return batched.padded(u * q < p, draft, False).cumprod(dim=1).bool()


class MaskedVerifier:
    """Batched PyTorch, as an engine without a kernel of its own does it.

    Waits for the device once, to check its arguments; not while a CUDA graph is captured.
    """

    rule = "token"
    lossless = True
    takes_padded = True

    def verify(self, draft: Draft, target: LogitRows, streams: Streams) -> Verification:
        if cpu_rows.takes_rule(draft, target):
            return cpu_rows.token_rule(draft, target, streams)
        arguments.check(draft, target, streams)
        num_accepted = accepted_mask(draft, target, streams).sum(dim=1)
        weights = batched.residual(*batched.next_rows(draft, target, num_accepted))
        emitted = inverse_cdf(weights, streams.uniform(Stream.EMIT)[:, 0])
        return batched.assemble(draft, num_accepted, emitted)
