"""Block verification: accepts a whole prefix at once, at least as long as token verification's on average.

Sun et al., "Block verification accelerates speculative decoding" (arXiv 2403.10444). With rho_i = p(x_i) / q(x_i) for
the drafted tokens x_1..x_g of a block:

    pi_0 = 1,  pi_i = min(1, pi_(i-1) rho_i)
    S_i  = sum_x max(pi_i p(x | x_1..x_i) - q(x | x_1..x_i), 0)
    h_i  = S_i / (S_i + 1 - pi_i)  for i < g  (1 where that is 0/0),  h_g = pi_g
    tau  = the largest i with u_i < h_i  (0 where there is none; a refused i does not end the search)

Then tau tokens are accepted, and the next is drawn from max(pi_tau p - q, 0), or from p where tau = g.
"""

from __future__ import annotations

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from specbench.core import arguments
from specbench.core.rng import Stream, Streams
from specbench.core.types import Draft, LogitRows, Verification
from specbench.sampling import inverse_cdf
from specbench.verifiers import batched


def prefix_weights(draft: Draft, target: LogitRows) -> Float64[Tensor, "B gamma1"]:
    """pi_0 ... pi_gamma of each block; what lies beyond a short draft is repeated from its end."""
    p, q = batched.drafted_probs(draft, target)
    ratios = batched.padded(p / q, draft, 1.0)
    weights = [torch.ones_like(ratios[:, 0]) if draft.max_draft_tokens else ratios.new_ones(len(ratios))]
    for i in range(draft.max_draft_tokens):
        weights.append((weights[-1] * ratios[:, i]).clamp(max=1))
    return torch.stack(weights, dim=1)


def residual_masses(
    draft: Draft, target: LogitRows, weights: Float64[Tensor, "B gamma1"]
) -> Float64[Tensor, "B gamma"]:
    """S_0 ... S_(gamma-1) of each block."""
    p = target.select(batched.target_row_of(draft)).probs()
    pi = weights[draft.request_of_row, batched.offsets(draft)]
    if draft.rows is None:
        masses = pi * (1 - p.gather(1, draft.token_ids[:, None])[:, 0])
    else:
        masses = (pi[:, None] * p - draft.rows.probs()).clamp(min=0).sum(dim=-1)
    return batched.padded(masses, draft, 0.0)


def h_values(
    weights: Float64[Tensor, "B gamma1"], masses: Float64[Tensor, "B gamma"], num_draft_tokens: Int64[Tensor, " B"]
) -> tuple[Float64[Tensor, "B gamma"], Float64[Tensor, "B gamma"]]:
    """h_1 ... h_gamma of each block, and what each was divided by: S_i + 1 - pi_i, and 1 at the block's end."""
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
        """See :class:`specbench.verifiers.Verifier`; drafted token i is tested with ACCEPT at offset i."""
        arguments.check(draft, target, streams)
        weights = prefix_weights(draft, target)
        u = streams.uniform(Stream.ACCEPT)[:, : draft.max_draft_tokens]
        masses = residual_masses(draft, target, weights)
        num_accepted = accepted_length(weights, masses, u, draft.num_draft_tokens)
        p, q = batched.next_rows(draft, target, num_accepted)
        pi = weights.gather(1, num_accepted[:, None])
        pi = torch.where(num_accepted[:, None] < draft.num_draft_tokens[:, None], pi, 1.0)
        emitted = inverse_cdf(batched.residual(pi * p, q), streams.uniform(Stream.EMIT)[:, 0])
        return batched.assemble(draft, num_accepted, emitted)
