"""Bugs of the token after the accepted ones: recovered, or the bonus, which first tokens do not show."""

from __future__ import annotations

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from specbench.core.rng import Stream
from specbench.core.types import Draft
from specbench.exactness.zoo.steps import BlockSteps, TokenSteps
from specbench.exactness.zoo.wrong_q import unprocessed
from specbench.rules import batched


def refused(draft: Draft, num_accepted: Int64[Tensor, " B"], vocabulary: int) -> Float64[Tensor, "B V"]:
    """One-hot rows of the drafted tokens behind the accepted ones; any token where all were accepted."""
    row = (draft.first_row + num_accepted).clamp(max=len(draft.token_ids) - 1)
    return torch.nn.functional.one_hot(draft.token_ids[row], vocabulary).double()


class SoftmaxedResidual(TokenSteps):
    """max(p - q, 0) goes through a softmax instead of being normalised (transformers PR 28508)."""

    def residual(self, p, q):
        return (p - q).clamp(min=0).softmax(dim=-1)


class TargetResidual(TokenSteps):
    """A refused token is replaced by a plain draw from the target.

    An option of romsto/Speculative-Decoding, skip_sample_adjustment; not traced to a bug report.
    """

    def residual(self, p, q):
        return p


class ResidualNextRow(TokenSteps):
    """The residual's p is read one row late; invisible where rows are equal.

    A mutant; openvino.genai issue 4190 draws the token after a refusal from that row, but without subtracting q.
    """

    def weights(self, draft, target, num_accepted):
        bonus = num_accepted == draft.num_draft_tokens
        p, q = batched.next_rows(draft, target, num_accepted)
        late = target.select(batched.target_row_after(draft, num_accepted + (~bonus).long())).probs()
        return torch.where(bonus[:, None], p, batched.residual(late, q))


class MisalignedResidual(TokenSteps):
    """p and q are subtracted by their place in their lists of kept tokens, which truncation makes different lists.

    llama.cpp, examples/speculative/speculative.cpp: both lists are sorted by id and then subtracted index by index.
    """

    def residual(self, p, q):
        order = (p == 0).int().argsort(dim=-1, stable=True)  # the kept tokens, by id
        kept_q = q.gather(1, (q == 0).int().argsort(dim=-1, stable=True))
        return torch.zeros_like(p).scatter(1, order, batched.residual(p.gather(1, order), kept_q))


class ClampedResidual(TokenSteps):
    """p - q is clamped at the smallest normal number of its dtype, not at 0, so that it can be normalised.

    vLLM PR 2336, rejection_sampler.py (its author marks the drift as to be done). In float32 that is 1e-38 and shows
    where p = q alone; in float16, as here, 6e-5 for every token that must not be drawn, which over a vocabulary of
    32,000 is more than the residual's own mass.
    """

    def residual(self, p, q):
        return (p - q).clamp(min=torch.finfo(torch.float16).tiny)


class NanResidual(TokenSteps):
    """A row with NaN emits the refused token again.

    vLLM PR 41834, comment of 2026-08-06: where q is NaN all scores become 0 and token 0 wins, the very token that the
    drafter's NaN had made it draft. Here the NaN is log 0 - log 0, and the refused token is emitted outright.
    """

    def weights(self, draft, target, num_accepted):
        p, q = batched.next_rows(draft, target, num_accepted)
        sound = batched.residual(p, q)
        if len(draft.token_ids) == 0:
            return sound
        broken = (p.log() - q.log()).isnan().any(dim=1) & (num_accepted < draft.num_draft_tokens)
        return torch.where(broken[:, None], refused(draft, num_accepted, p.shape[1]), sound)


class ResidualOfOneToken(TokenSteps):
    """q is subtracted at the drafted token alone, the only one whose q was kept (xLLM PR 2175)."""

    def weights(self, draft, target, num_accepted):
        p, q = batched.next_rows(draft, target, num_accepted)
        return batched.residual(p, q * refused(draft, num_accepted, p.shape[1])) if len(draft.token_ids) else p


class OutsideVocabulary(TokenSteps):
    """A search in a float32 sum that u rounded to 1 overruns: the id is the vocabulary's size.

    FlashInfer's chain sampling guards against it (include/flashinfer/sampling.cuh, where sampled_id == d), as
    TensorRT-LLM issue 19485 did not in its top-p; vLLM PR 45060 emitted the same id from rows that were all NaN.
    """

    def emit(self, weights, draft, streams, num_accepted):
        cumulative = (weights / weights.sum(dim=-1, keepdim=True)).float().cumsum(dim=-1)
        return torch.searchsorted(cumulative, streams.uniform(Stream.EMIT)[:, :1].float().contiguous(), right=True)[
            :, 0
        ]


class UnscaledBlockResidual(BlockSteps):
    """Block verification with the token rule's residual max(p - q, 0) (one half of vllm-ascend issue 7807)."""

    def residual(self, p, q, pi):
        return batched.residual(p, q)


class UnprocessedBonus(TokenSteps):
    """Drawn from softmax(logits), without temperature and top-p.

    hemingkx/Spec-Bench, evaluate_posterior in model/eagle, eagle2 and eagle3, utils.py.
    """

    def bonus(self, draft, target, p):
        return unprocessed(target.select(batched.target_row_after(draft, draft.num_draft_tokens))).probs()


class ArgmaxBonus(TokenSteps):
    """The likeliest token, at any temperature.

    FasterDecoding/Medusa, generate_candidates in medusa/model/utils.py with its default fast=True: the root of the next
    tree, which is this step's bonus token. (Medusa's typical acceptance, in its turn, is declared lossy.)
    """

    def bonus(self, draft, target, p):
        return torch.nn.functional.one_hot(p.argmax(dim=-1), p.shape[1]).double()


class PreviousRowBonus(TokenSteps):
    """From the row that scored the last drafted token; unseen where rows are equal.

    A mutant: no thread known.
    """

    def bonus(self, draft, target, p):
        return target.select(batched.target_row_after(draft, (draft.num_draft_tokens - 1).clamp(min=0))).probs()
