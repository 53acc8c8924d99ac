"""Bugs of the recovered token."""

from __future__ import annotations

import torch

from specbench.rng import Stream
from specbench.verifiers import batched
from specbench.verifiers.flawed.base import BlockSteps, TokenSteps


class SoftmaxedResidual(TokenSteps):
    """max(p - q, 0) goes through a softmax instead of being normalised (transformers PR 28508)."""

    def residual(self, p, q):
        return (p - q).clamp(min=0).softmax(dim=-1)


class TargetResidual(TokenSteps):
    """A refused token is replaced by a plain draw from the target.

    romsto/Speculative-Decoding with skip_sample_adjustment, and a widely read tutorial.
    """

    def residual(self, p, q):
        return p


class ResidualNextRow(TokenSteps):
    """The residual's p is read one row late. A mutant: no thread known, invisible where rows are equal."""

    def weights(self, draft, target, num_accepted):
        bonus = num_accepted == draft.num_draft_tokens
        batch = torch.arange(len(num_accepted), device=num_accepted.device)
        p, q = batched.next_rows(draft, target, num_accepted)
        late = target.select(draft.first_row + batch + torch.where(bonus, num_accepted, num_accepted + 1)).probs()
        return torch.where(bonus[:, None], p, batched.residual(late, q))


class MisalignedResidual(TokenSteps):
    """p and q are subtracted by their place in two lists sorted by probability (llama.cpp, speculative.cpp)."""

    def residual(self, p, q):
        order = p.argsort(dim=-1, descending=True, stable=True)
        left = (p.gather(1, order) - q.sort(dim=-1, descending=True).values).clamp(min=0)
        left = torch.where(left.sum(dim=-1, keepdim=True) > 0, left, p.gather(1, order))
        return torch.zeros_like(p).scatter(1, order, left)


class ClampedResidual(TokenSteps):
    """p - q is clamped at the smallest normal number of its dtype, not at 0, so that it can be normalised.

    vLLM PR 2336. In float32 that is 1e-38 and shows where p = q alone; in float16, as here, 6e-5 for every token that
    must not be drawn, which over a vocabulary of 32,000 is more than the residual's own mass.
    """

    def residual(self, p, q):
        return (p - q).clamp(min=torch.finfo(torch.float16).tiny)


class NanResidual(TokenSteps):
    """A row with NaN (here log 0 - log 0) emits the refused token again (vLLM PR 41834)."""

    def weights(self, draft, target, num_accepted):
        p, q = batched.next_rows(draft, target, num_accepted)
        sound = batched.residual(p, q)
        if len(draft.token_ids) == 0:
            return sound
        broken = (p.log() - q.log()).isnan().any(dim=1) & (num_accepted < draft.num_draft_tokens)
        row = (draft.first_row + num_accepted).clamp(max=len(draft.token_ids) - 1)
        refused = torch.nn.functional.one_hot(draft.token_ids[row], p.shape[1]).double()
        return torch.where(broken[:, None], refused, sound)


class OutsideVocabulary(TokenSteps):
    """A search in a float32 sum that u rounded to 1 overruns: the id is the vocabulary's size (vLLM PR 45060)."""

    def emit(self, weights, draft, streams, num_accepted):
        cumulative = (weights / weights.sum(dim=-1, keepdim=True)).float().cumsum(dim=-1)
        return torch.searchsorted(cumulative, streams.uniform(Stream.EMIT)[:, :1].float().contiguous(), right=True)[
            :, 0
        ]


class UnscaledBlockResidual(BlockSteps):
    """Block verification with the token rule's residual max(p - q, 0) (vllm-ascend issue 7807)."""

    def residual(self, p, q, pi):
        return batched.residual(p, q)
