"""Token verification of a whole ragged batch as tensor operations: no loop over requests or positions.

The same rule as naive.py. A mask of accepted tokens is built by a running product along each block; the residual is
computed for the one row a request that needs it; the bonus row is the same row with nothing subtracted.
"""

from __future__ import annotations

from jaxtyping import Bool
from torch import Tensor

from specbench.core import arguments
from specbench.core.rng import Stream, Streams
from specbench.core.types import Draft, LogitRows, Verification
from specbench.sampling import inverse_cdf
from specbench.verifiers import batched


def accepted_mask(draft: Draft, target: LogitRows, streams: Streams) -> Bool[Tensor, "B gamma"]:
    """True where a drafted token and all drafted before it in its block are accepted."""
    p, q = batched.drafted_probs(draft, target)
    u = streams.uniform(Stream.ACCEPT)[draft.request_of_row, batched.offsets(draft)]
    return batched.padded(u * q < p, draft, False).cumprod(dim=1).bool()


class MaskedVerifier:
    """Batched PyTorch, as an engine without a kernel of its own would do it.

    Waits for the device once, to check its arguments; not while a CUDA graph is captured.
    """

    rule = "token"
    lossless = True
    takes_padded = True

    def verify(self, draft: Draft, target: LogitRows, streams: Streams) -> Verification:
        """See :class:`specbench.verifiers.Verifier`."""
        arguments.check(draft, target, streams)
        num_accepted = accepted_mask(draft, target, streams).sum(dim=1)
        weights = batched.residual(*batched.next_rows(draft, target, num_accepted))
        emitted = inverse_cdf(weights, streams.uniform(Stream.EMIT)[:, 0])
        return batched.assemble(draft, num_accepted, emitted)
