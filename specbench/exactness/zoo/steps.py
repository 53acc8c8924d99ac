"""Token verification cut into the pieces that bugs replace, and block verification likewise."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from specbench.core import arguments
from specbench.core.rng import Stream, Streams
from specbench.core.types import Draft, LogitRows, Verification
from specbench.rules import batched
from specbench.rules.block import masked as block
from specbench.sampling import inverse_cdf


class TokenSteps:
    """Token verification; as it stands it is the sound rule of masked.py. A bug overrides one method."""

    rule = "token"
    lossless = False

    def verify(self, draft: Draft, target: LogitRows, streams: Streams) -> Verification:
        arguments.check(draft, target, streams)
        draft, target, streams = self.read(draft, target, streams)
        p, q = self.drafted(draft, target)
        mask = batched.padded(self.accepts(p, q, self.accept_uniforms(draft, streams)), draft, False)
        num_accepted = self.count(mask)
        weights = self.weights(draft, target, num_accepted)
        return self.output(draft, num_accepted, self.emit(weights, draft, streams, num_accepted))

    def read(self, draft: Draft, target: LogitRows, streams: Streams) -> tuple[Draft, LogitRows, Streams]:
        """The arguments as the rule reads them."""
        return draft, target, streams

    def drafted(self, draft: Draft, target: LogitRows) -> tuple[Float64[Tensor, " n"], Float64[Tensor, " n"]]:
        """p and q of the drafted tokens."""
        return batched.drafted_probs(draft, target)

    def accept_uniforms(self, draft: Draft, streams: Streams) -> Float64[Tensor, " n"]:
        return streams.uniform(Stream.ACCEPT)[draft.request_of_row, batched.offsets(draft)]

    def accepts(
        self, p: Float64[Tensor, " n"], q: Float64[Tensor, " n"], u: Float64[Tensor, " n"]
    ) -> Bool[Tensor, " n"]:
        return u * q < p

    def count(self, mask: Bool[Tensor, "B gamma"]) -> Int64[Tensor, " B"]:
        """Tokens accepted, up to the first refusal."""
        return mask.cumprod(dim=1).sum(dim=1)

    def weights(self, draft: Draft, target: LogitRows, num_accepted: Int64[Tensor, " B"]) -> Float64[Tensor, "B V"]:
        """What the recovered or bonus token is drawn from."""
        p, q = batched.next_rows(draft, target, num_accepted)
        bonus = (num_accepted == draft.num_draft_tokens)[:, None]
        return torch.where(bonus, self.bonus(draft, target, p), self.residual(p, q))

    def residual(self, p: Float64[Tensor, "B V"], q: Float64[Tensor, "B V"]) -> Float64[Tensor, "B V"]:
        """What the recovered token is drawn from."""
        return batched.residual(p, q)

    def bonus(self, draft: Draft, target: LogitRows, p: Float64[Tensor, "B V"]) -> Float64[Tensor, "B V"]:
        """What the bonus token is drawn from."""
        return p

    def emit(
        self, weights: Float64[Tensor, "B V"], draft: Draft, streams: Streams, num_accepted: Int64[Tensor, " B"]
    ) -> Int64[Tensor, " B"]:
        """Draws the recovered or bonus token."""
        return inverse_cdf(weights, streams.uniform(Stream.EMIT)[:, 0])

    def output(self, draft: Draft, num_accepted: Int64[Tensor, " B"], emitted: Int64[Tensor, " B"]) -> Verification:
        """Puts the tokens where they belong."""
        return batched.assemble(draft, num_accepted, emitted)


class BlockSteps:
    """Block verification; as it stands it is the sound rule of rules/block. A bug overrides one method."""

    rule = "block"
    lossless = False

    def verify(self, draft: Draft, target: LogitRows, streams: Streams) -> Verification:
        arguments.check(draft, target, streams)
        weights = self.prefix_weights(draft, target)
        u = streams.uniform(Stream.ACCEPT)[:, : draft.max_draft_tokens]
        num_accepted = self.accepted_length(draft, target, weights, u)
        p, q = batched.next_rows(draft, target, num_accepted)
        pi = weights.gather(1, num_accepted[:, None])
        pi = torch.where(num_accepted[:, None] < draft.num_draft_tokens[:, None], pi, 1.0)
        emitted = inverse_cdf(self.residual(p, q, pi), streams.uniform(Stream.EMIT)[:, 0])
        return batched.assemble(draft, num_accepted, emitted)

    def prefix_weights(self, draft: Draft, target: LogitRows) -> Float64[Tensor, "B gamma1"]:
        """pi_0 ... pi_gamma."""
        return block.prefix_weights(draft, target)

    def accepted_length(
        self, draft: Draft, target: LogitRows, weights: Float64[Tensor, "B gamma1"], u: Float64[Tensor, "B gamma"]
    ) -> Int64[Tensor, " B"]:
        """tau."""
        return block.accepted_length(weights, block.residual_masses(draft, target, weights), u, draft.num_draft_tokens)

    def residual(
        self, p: Float64[Tensor, "B V"], q: Float64[Tensor, "B V"], pi: Float64[Tensor, "B 1"]
    ) -> Float64[Tensor, "B V"]:
        """What the token after the accepted ones is drawn from."""
        return batched.residual(pi * p, q)
