"""Bugs of the random numbers: each draw looks right by itself, the draws are not independent."""

import dataclasses

import torch

from specbench.core.rng import Stream, philox, to_uniform
from specbench.exactness.zoo.steps import TokenSteps
from specbench.rules import batched
from specbench.sampling import inverse_cdf


class ReusedAcceptUniform(TokenSteps):
    """The recovered token is drawn with the uniform that refused the drafted one (vllm-ascend PR 16370)."""

    def emit(self, weights, draft, streams, num_accepted):
        offset = num_accepted.minimum((draft.num_draft_tokens - 1).clamp(min=0))
        reused = streams.uniform(Stream.ACCEPT).gather(1, offset[:, None])
        own = streams.uniform(Stream.EMIT)[:, :1]
        u = torch.where((num_accepted < draft.num_draft_tokens)[:, None], reused, own)
        return inverse_cdf(weights, u[:, 0])


class ReseededDraws(TokenSteps):
    """The generator is seeded before every accept test, so that all tests of a block share one number.

    feifeibear/LLMSpeculativeSampling, sampling/speculative_sampling.py, where it is given a seed; in Rapid-MLX PR 2140
    one number was drawn for the block.
    """

    def accept_uniforms(self, draft, streams):
        return streams.uniform(Stream.ACCEPT)[draft.request_of_row, 0]


class ReseededSteps(TokenSteps):
    """The generator is seeded at every step: its numbers do not depend on the position.

    feifeibear/LLMSpeculativeSampling, as above: a run with a seed tests every position against the same number.
    """

    def read(self, draft, target, streams):
        return draft, target, dataclasses.replace(streams, positions=torch.zeros_like(streams.positions))


class SeedOfFirstRow(TokenSteps):
    """The seed covers row 0 of the batch, and all rows draw its numbers.

    TensorRT-LLM issue 19487: requests without a seed draw the same numbers. In FlashInfer (PR 4861) row 0's seed is all
    rows' too, but the row is part of the counter, so that its rows differ and are only not reproducible.
    """

    def accept_uniforms(self, draft, streams):
        return streams.uniform(Stream.ACCEPT)[0, batched.offsets(draft)]

    def emit(self, weights, draft, streams, num_accepted):
        return inverse_cdf(weights, streams.uniform(Stream.EMIT)[:1, 0].expand(len(weights)))


class SharedGumbel(TokenSteps):
    """Draft and recovered token are argmaxima over the same Gumbel noise (vLLM PRs 47386 and 54282).

    The refused token won the draft with that noise, so the noise says something about the others.
    """

    def draft_tokens(self, rows, u):
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
