"""Bugs of the random numbers: each draw looks right by itself, the draws are not independent."""

from __future__ import annotations

import dataclasses

import torch

from specbench.rng import Stream, philox, to_uniform
from specbench.sampling import inverse_cdf
from specbench.verifiers import batched
from specbench.verifiers.flawed.base import TokenSteps


class ReusedAcceptUniform(TokenSteps):
    """The recovered token is drawn with the uniform that refused the drafted one (vllm-ascend issue 16370)."""

    def emit(self, weights, draft, streams, num_accepted):
        offset = num_accepted.minimum((draft.num_draft_tokens - 1).clamp(min=0))
        reused = streams.uniform(Stream.ACCEPT).gather(1, offset[:, None])
        own = streams.uniform(Stream.EMIT)[:, :1]
        u = torch.where((num_accepted < draft.num_draft_tokens)[:, None], reused, own)
        return inverse_cdf(weights, u[:, 0])


class ReseededDraws(TokenSteps):
    """The generator is seeded before every draw, so that all draws of a position are one (feifeibear's loop)."""

    def accept_uniforms(self, draft, streams):
        return streams.uniform(Stream.DRAFT)[draft.request_of_row, batched.offsets(draft)]


class ReseededSteps(TokenSteps):
    """The generator is seeded at every step: its numbers do not depend on the position (feifeibear, seeded runs)."""

    def read(self, draft, target, streams):
        return draft, target, dataclasses.replace(streams, positions=torch.zeros_like(streams.positions))


class SeedOfFirstRow(TokenSteps):
    """The seed covers row 0 of the batch, and all rows draw its numbers (FlashInfer, chain speculative sampling)."""

    def accept_uniforms(self, draft, streams):
        return streams.uniform(Stream.ACCEPT)[0, batched.offsets(draft)]

    def emit(self, weights, draft, streams, num_accepted):
        return inverse_cdf(weights, streams.uniform(Stream.EMIT)[:1, 0].expand(len(weights)))


class SharedGumbel(TokenSteps):
    """Draft and recovered token are argmaxima over the same Gumbel noise (vLLM issue 54282).

    The refused token won the draft with that noise, so the noise says something about the others.
    """

    def draft_tokens(self, rows, u):
        """The drafted tokens, and the rows they are said to be from."""
        return (rows.probs().log() + gumbel(u, rows.logits.shape[1])).argmax(dim=-1), rows

    def emit(self, weights, draft, streams, num_accepted):
        offset = num_accepted.clamp(max=streams.width - 1)
        u = streams.uniform(Stream.DRAFT).gather(1, offset[:, None])[:, 0]
        return (weights.log() + gumbel(u, weights.shape[1])).argmax(dim=-1)


def gumbel(u: torch.Tensor, vocabulary: int) -> torch.Tensor:
    """Gumbel noise [n, vocabulary] in which row i is a function of u[i]."""
    bits = (u * 2.0**52).long()[:, None]
    token = torch.arange(vocabulary, device=u.device)[None, :]
    zero = torch.zeros_like(bits)
    high, low, _, _ = philox((bits & 0xFFFFFFFF, bits >> 32), (token, zero, zero, zero))
    return -(-to_uniform(high, low).log()).log()
