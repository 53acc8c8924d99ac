"""Plain code that follows a rule, from its formulas alone: what other verifiers of the rule are held to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specbench.core import arguments
from specbench.core.rng import Stream, Streams
from specbench.core.types import Draft, LogitRows, Verification
from specbench.rules.along import AlongBatch
from specbench.sampling import inverse_cdf
from specbench.verifiers import batched

if TYPE_CHECKING:
    from specbench.rules.rule import Rule


class ReferenceVerifier:
    """Batched PyTorch in float64; waits for the device once, to check its arguments.

    Args:
        rule: one whose formulas are known.
    """

    def __init__(self, rule: Rule):
        self.rule, self.lossless = rule, rule.lossless

    def verify(self, draft: Draft, target: LogitRows, streams: Streams) -> Verification:
        """See :class:`specbench.verifiers.Verifier`."""
        arguments.check(draft, target, streams)
        along = AlongBatch(draft, target)
        u = streams.uniform(Stream.ACCEPT)[:, : draft.max_draft_tokens]
        num_accepted = self.rule.num_accepted(self.rule.limits(along), u)
        weights = self.rule.weights_after(along, num_accepted)
        return batched.assemble(draft, num_accepted, inverse_cdf(weights, streams.uniform(Stream.EMIT)[:, 0]))
