"""A target and a draft whose distributions depend on position and prefix, and the G-test of a whole step's joint."""

from __future__ import annotations

from itertools import product

import torch
from scipy import stats
from torch import Tensor

from specbench.core.rng import Stream, Streams
from specbench.core.types import PADDING, Draft, LogitRows
from specbench.rules.verifier import Verifier
from specbench.sampling import RowParams, SamplingParams, logit_rows, sample


class MarkovPair:
    """Logits [position, previous token, V]: every row differs, so that a row read in another's place shows."""

    def __init__(self, vocabulary: int, gamma: int, seed: int, device: str = "cpu") -> None:
        generator = torch.Generator().manual_seed(seed)
        shape = (gamma + 1, vocabulary, vocabulary)
        self.vocabulary, self.gamma, self.device = vocabulary, gamma, device
        self.target = (1.5 * torch.randn(shape, generator=generator)).to(device)
        self.draft = (1.5 * torch.randn(shape, generator=generator)).to(device)

    def step(
        self,
        draws: int,
        seed: int,
        params: SamplingParams,
        dtype: torch.dtype = torch.float32,
        one_hot: bool = False,
        known: bool = True,
    ) -> tuple[Draft, LogitRows, Streams]:
        """The arguments of one verification of ``draws`` requests; ``known``: the rows come with normalisers."""
        rows = RowParams.of([params], self.device).select(torch.zeros(draws, dtype=torch.int64, device=self.device))
        seeds = torch.arange(draws, device=self.device) + 10**7 * seed
        streams = Streams(seeds, torch.zeros_like(seeds), self.gamma + 1)
        previous, tokens, steps = torch.zeros_like(seeds), [], []
        for i in range(self.gamma):
            steps.append(logit_rows(self.draft.to(dtype)[i, previous], rows))
            u = streams.uniform(Stream.DRAFT)[:, i]
            previous = steps[-1].logits.argmax(-1) if one_hot else sample(steps[-1], u)
            tokens.append(previous)
        token_ids = torch.stack(tokens, dim=1)
        before = torch.cat([torch.zeros_like(token_ids[:, :1]), token_ids], dim=1)
        places = torch.arange(self.gamma + 1, device=self.device)
        owner = torch.arange(draws, device=self.device).repeat_interleave(self.gamma + 1)
        target = logit_rows(self.target.to(dtype)[places, before].flatten(0, 1), rows.select(owner))
        q = LogitRows.interleave(steps)
        if not known:
            target = LogitRows(target.logits, target.temperature, target.cutoff, None)
            q = LogitRows(q.logits, q.temperature, q.cutoff, None)
        counts = torch.full_like(seeds, self.gamma)
        return Draft(token_ids.flatten(), None if one_hot else q, counts, self.gamma), target, streams

    def probs(self, params: SamplingParams, dtype: torch.dtype = torch.float32) -> Tensor:
        """The target's distributions [position, previous token, V], float64."""
        logits = self.target.to(dtype).flatten(0, 1)
        rows = RowParams.of([params], self.device)
        every = rows.select(torch.zeros(len(logits), dtype=torch.int64, device=self.device))
        return logit_rows(logits, every).probs().view(self.target.shape)

    def joint(self, probs: Tensor) -> Tensor:
        """The probability of every sequence of gamma + 1 tokens, [V ** (gamma + 1)]."""
        probs, joint = probs.cpu(), []
        for tokens in product(range(self.vocabulary), repeat=self.gamma + 1):
            previous, value = 0, torch.ones((), dtype=torch.float64)
            for position, token in enumerate(tokens):
                value, previous = value * probs[position, previous, token], token
            joint.append(value)
        return torch.stack(joint)

    def counts(self, token_ids: Tensor, probs: Tensor, seed: int) -> Tensor:
        """How often each sequence came, after every short step was completed with samples of the target."""
        generator = torch.Generator(self.device).manual_seed(seed)
        previous = torch.zeros_like(token_ids[:, 0])
        index = torch.zeros_like(previous)
        for position in range(self.gamma + 1):
            sampled = torch.multinomial(probs[position, previous], 1, generator=generator)[:, 0]
            emitted = token_ids[:, position]
            previous = torch.where(emitted == PADDING, sampled, emitted)
            index = index * self.vocabulary + previous
        return torch.bincount(index, minlength=self.vocabulary ** (self.gamma + 1)).cpu()

    def p_value(
        self,
        verifier: Verifier,
        draws: int,
        seed: int,
        params: SamplingParams,
        dtype: torch.dtype = torch.float32,
        one_hot: bool = False,
        known: bool = True,
    ) -> float:
        """G-test of one step's joint against the target's; 0 where a sequence of probability 0 came, or no token."""
        draft, target, streams = self.step(draws, seed, params, dtype, one_hot, known)
        emitted = verifier.verify(draft, target, streams).token_ids
        if (emitted[:, 0] == PADDING).any():  # the target would complete such a step, and hide it
            return 0.0
        probs = self.probs(params, dtype)
        counts, expected = self.counts(emitted, probs, seed).double(), self.joint(probs) * draws
        if counts[expected == 0].sum() > 0:
            return 0.0
        rare = expected < 5
        observed = torch.cat([counts[~rare], counts[rare].sum()[None]]).numpy()
        wanted = torch.cat([expected[~rare], expected[rare].sum()[None]]).numpy()
        wanted *= observed.sum() / wanted.sum()  # normalisers in float32 leave sums of 1 + 5e-8, which SciPy refuses
        keep = wanted > 0
        if keep.sum() == 1:  # a greedy step has one outcome
            return float(observed[keep][0] == draws)
        return float(stats.power_divergence(observed[keep], wanted[keep], lambda_="log-likelihood").pvalue)
