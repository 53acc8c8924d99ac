"""Block verification of a whole ragged batch as tensor operations; block/__init__.py defines pi, S, h and tau."""

from __future__ import annotations

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from specbench.core import arguments
from specbench.core.rng import Stream, Streams
from specbench.core.types import Draft, LogitRows, Verification
from specbench.kernels import cpu_rows
from specbench.rules import batched
from specbench.sampling import inverse_cdf


def prefix_weights(draft: Draft, target: LogitRows) -> Float64[Tensor, "B gamma1"]:
    """pi_0 ... pi_gamma of each block; a short draft repeats its last value."""
    p, q = batched.drafted_probs(draft, target)
    ratios = batched.padded(p / q, draft, 1.0)
    weights = [ratios.new_ones(len(ratios))]
    for i in range(draft.max_draft_tokens):
        weights.append((weights[-1] * ratios[:, i]).clamp(max=1))
    return torch.stack(weights, dim=1)


def block_lengths(weights: Float64[Tensor, "B gamma1"], num_draft_tokens: Int64[Tensor, " B"]) -> Int64[Tensor, " B"]:
    """Returns the tokens of each block before its first row without a distribution, where pi turns NaN."""
    return (~weights[:, 1:].isnan()).sum(dim=1).minimum(num_draft_tokens)


def residual_masses(
    draft: Draft, target: LogitRows, weights: Float64[Tensor, "B gamma1"]
) -> Float64[Tensor, "B gamma"]:
    """S_0 ... S_(gamma-1) of each block."""
    p = target.select(batched.target_row_of(draft)).probs()
    pi = batched.of_rows(weights, draft)
    if draft.rows is None:
        masses = pi * (1 - p.gather(1, draft.token_ids[:, None])[:, 0])
    else:
        masses = (pi[:, None] * p - draft.rows.probs()).clamp(min=0).sum(dim=-1)
    return batched.padded(masses, draft, 0.0)


def h_values(
    weights: Float64[Tensor, "B gamma1"], masses: Float64[Tensor, "B gamma"], num_draft_tokens: Int64[Tensor, " B"]
) -> tuple[Float64[Tensor, "B gamma"], Float64[Tensor, "B gamma"]]:
    """h_1 ... h_gamma of each block, and the denominators: S_i + 1 - pi_i, and 1 at the block's end."""
    lengths = torch.arange(1, weights.shape[1], device=weights.device)
    pi = weights[:, 1:]
    # S_gamma does not exist; the last h of every block is its pi.
    mass = torch.cat([masses[:, 1:], torch.zeros_like(masses[:, :1])], dim=1)
    total = mass + 1 - pi
    h = torch.where(total == 0, 1.0, mass / torch.where(total == 0, 1.0, total))
    last = lengths == num_draft_tokens[:, None]
    return torch.where(last, pi, h), torch.where(last, 1.0, total)


def accepted_length(
    weights: Float64[Tensor, "B gamma1"],
    masses: Float64[Tensor, "B gamma"],
    u: Float64[Tensor, "B gamma"],
    num_draft_tokens: Int64[Tensor, " B"],
) -> Int64[Tensor, " B"]:
    """tau of each block."""
    lengths = torch.arange(1, weights.shape[1], device=u.device)
    h, _ = h_values(weights, masses, num_draft_tokens)
    accepted = (u < h) & (lengths <= num_draft_tokens[:, None])
    return (accepted * lengths).amax(dim=1) if len(lengths) else torch.zeros_like(num_draft_tokens)


class BlockVerifier:
    """Batched PyTorch; waits for the device once, to check its arguments; not while a CUDA graph is captured."""

    rule = "block"
    lossless = True
    takes_padded = True

    def verify(self, draft: Draft, target: LogitRows, streams: Streams) -> Verification:
        """See :class:`specbench.rules.verifier.Verifier`; drafted token i is tested with ACCEPT at offset i."""
        if cpu_rows.takes_rule(draft, target):
            return cpu_rows.block_rule(draft, target, streams)
        arguments.check(draft, target, streams)
        weights = prefix_weights(draft, target)
        u = streams.uniform(Stream.ACCEPT)[:, : draft.max_draft_tokens]
        masses = residual_masses(draft, target, weights)
        num_accepted = accepted_length(weights, masses, u, block_lengths(weights, draft.num_draft_tokens))
        p, q = batched.next_rows(draft, target, num_accepted)
        pi = weights.gather(1, num_accepted[:, None])
        pi = torch.where(num_accepted[:, None] < draft.num_draft_tokens[:, None], pi, 1.0)
        emitted = inverse_cdf(batched.residual(pi * p, q), streams.uniform(Stream.EMIT)[:, 0])
        return batched.assemble(draft, num_accepted, emitted)
