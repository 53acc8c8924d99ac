"""Bugs of the accept test."""

import torch

from specbench.core.rng import Stream
from specbench.exactness.zoo.steps import BlockSteps, TokenSteps
from specbench.rules import batched
from specbench.rules.block import masked as block


class AcceptsEverything(TokenSteps):
    """The comparison is lost: every drafted token stands.

    transformers PR 28508 mends a count of matches that was always all of them (~ took the sum in place of the mask);
    in vllm-ascend issue 13730 u is 0, because its compiler lacked a generator.
    """

    def accepts(self, p, q, u):
        return torch.ones_like(u, dtype=torch.bool)


class FirstUnverified(TokenSteps):
    """The loop starts at the second drafted token: draft[0] is never tested (ohdearquant/lattice issue 243)."""

    def count(self, mask):
        mask = mask.clone()
        mask[:, :1] = True
        return mask.cumprod(dim=1).sum(dim=1)

    def output(self, draft, num_accepted, emitted):
        return super().output(draft, num_accepted.minimum(draft.num_draft_tokens), emitted)

    def weights(self, draft, target, num_accepted):
        return super().weights(draft, target, num_accepted.minimum(draft.num_draft_tokens))


class Lenient(TokenSteps):
    """q is scaled by a lenience of 0.8 "for speed".

    arXiv 2211.17192 offers it as a lossy variant, and lucidrains/speculative-decoding as an argument, 1 by default.
    """

    def accepts(self, p, q, u):
        return u * q * 0.8 < p


class SwappedRatio(TokenSteps):
    """p and q have changed places in the accept test: a drafted token stands with probability min(1, q / p).

    A mutant: no thread known, but the target is p in arXiv 2211.17192 and q in arXiv 2302.01318.
    """

    def accepts(self, p, q, u):
        return u * p < q


class CoarseUniform(TokenSteps):
    """Uniforms in bfloat16 and <= for the test: u = 0 in one of 512, which accepts p = 0.

    meta-pytorch/gpt-fast, generate.py: rand_like of bfloat16 probabilities (numbers that round to 1 come out as 0).
    """

    def accepts(self, p, q, u):
        coarse = torch.floor(u * 512) / 512
        return coarse <= p / q


class ZeroAcceptsZero(TokenSteps):
    """float32 uniforms from [0, 1) and u <= p/q: u = 0, one in 2^24, accepts a token of probability 0.

    sglang issue 35771; llama.cpp (examples/speculative), lucidrains/speculative-decoding, transformers and
    feifeibear/LLMSpeculativeSampling (its first function) compare so.
    """

    def accepts(self, p, q, u):
        return torch.floor(u * 2**24) / 2**24 <= p / q


class StaleProbability(TokenSteps):
    """A token that truncation removed from the target keeps the p looked up last.

    llama.cpp, examples/speculative/speculative.cpp: p is looked up in the list of kept tokens, and a token that is not
    in it leaves the p of the branch before it. On a chain, as here, the token before stands in for that branch.
    """

    def drafted(self, draft, target):
        p, q = super().drafted(draft, target)
        before = torch.roll(p, 1)
        return torch.where((p == 0) & (batched.offsets(draft) > 0), before, p), q


class NextRowAccept(TokenSteps):
    """The accept test reads p one row late (a reviewer's finding in mlx-node PR 11); unseen where rows are equal."""

    def drafted(self, draft, target):
        late = target.select(batched.target_row_of(draft) + 1).prob(draft.token_ids)
        return late, super().drafted(draft, target)[1]


class TwoChances(TokenSteps):
    """Accepts where the ratio test passes, and also where a draw of the target's own is the drafted token.

    alibaba/rtp-llm PR 1295. That draw is the drafted token with probability p, whatever u is: a second test of w < p.
    """

    def accept_uniforms(self, draft, streams):
        own = streams.uniform(Stream.EMIT)[draft.request_of_row, batched.offsets(draft) + 1]
        return torch.stack([super().accept_uniforms(draft, streams), own], dim=1)

    def accepts(self, p, q, u):
        return (u[:, 0] * q < p) | (u[:, 1] < p)


class BlockByTokenCriterion(BlockSteps):
    """Block verification's search for the last success, with the token rule's ratios and residual.

    vllm-ascend issue 7807: the product of the ratios, each capped at 1, is held against the product of the uniforms.
    """

    def prefix_weights(self, draft, target):
        p, q = batched.drafted_probs(draft, target)
        ratios = batched.padded(p / q, draft, 1.0).clamp(max=1)
        return torch.cat([ratios.new_ones((len(ratios), 1)), ratios], dim=1).cumprod(dim=1)

    def accepted_length(self, draft, target, weights, u):
        lengths = torch.arange(1, weights.shape[1], device=u.device)
        accepted = (u.cumprod(dim=1) <= weights[:, 1:]) & draft.drafted
        return (accepted * lengths).amax(dim=1) if len(lengths) else torch.zeros_like(draft.num_draft_tokens)

    def residual(self, p, q, pi):
        return batched.residual(p, q)


class BlockUncapped(BlockSteps):
    """The last test's product of ratios is not capped at 1 along the way.

    ZhouYuxuanYX/Hierarchical-Speculative-Decoding, algorithm.py (of arXiv 2601.05724, whose other tests differ too).
    """

    def prefix_weights(self, draft, target):
        p, q = batched.drafted_probs(draft, target)
        weights = block.prefix_weights(draft, target)
        if draft.max_draft_tokens:
            weights[:, -1] = batched.padded(p / q, draft, 1.0).prod(dim=1).clamp(max=1)
        return weights


class BlockEarlyStop(BlockSteps):
    """Block verification that stops at its first refusal, as token verification does.

    A mutant: in no code known, though a review of vllm-ascend PR 11985 asks for it.
    """

    def accepted_length(self, draft, target, weights, u):
        h, _ = block.h_values(weights, block.residual_masses(draft, target, weights), draft.num_draft_tokens)
        return ((u < h) & draft.drafted).cumprod(dim=1).sum(dim=1)
