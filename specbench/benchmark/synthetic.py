"""Logits that behave like a language model's, made on the device from a seed, and drafts that were sampled from them.

Each draft row is s times V independent exponential variables. Their order statistics fall as log(V / rank), so the
probabilities follow Zipf's law with exponent s / temperature, with the noise of a sample, over tokens in random order;
s is drawn for each row from [1.0, 2.2], which makes some rows nearly certain and leaves others open. At temperature
0.8 and V = 128,256 the mean entropy is 1.8 nats, the likeliest token has 0.58 of the mass, and 0.9 of it lies on a
handful of tokens. The target's row is the draft's with normal noise of standard deviation 0.8 added to every logit:
the overlap is then 0.76, the range in which pairs of one family lie at the positions that matter. The acceptance of
the very tokens that were drafted is reported beside each time, since the work depends on it.

Rows are rounded to the case's dtype before anything is sampled, as a model's logits are.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Int64, Shaped
from torch import Tensor

from specbench.benchmark.grid import CaseSpec
from specbench.provenance import request_seed
from specbench.rng import Stream, Streams
from specbench.sampling import RowParams, logit_rows, sample
from specbench.types import Draft, LogitRows

SHARPNESS = (1.0, 2.2)
NOISE = 0.8
POSITIONS = 8192  # a case's requests stand somewhere below
_AT_ONCE = 256  # rows whose dense float64 probabilities are held side by side


@dataclass(frozen=True)
class Case:
    """One step of a batch, as it stands when the target's logits have been computed.

    Types that remember what they computed (Draft, LogitRows, Streams) are made anew by :meth:`inputs`, so that no call
    profits from an earlier one; the tensors of a few bytes a request in them are the same at each call, as a serving
    engine holds them.

    Attributes:
        target_cutoff: -inf, for samplers that do not truncate.
    """

    spec: CaseSpec
    target_logits: Shaped[Tensor, "m V"]
    target_params: RowParams
    target_cutoff: Float[Tensor, " m"]
    token_ids: Int64[Tensor, " n"]
    draft_logits: Shaped[Tensor, "n V"]
    draft_temperature: Float[Tensor, " n"]
    draft_cutoff: Float[Tensor, " n"]
    draft_log_normalizer: Float[Tensor, " n"]
    num_draft_tokens: Int64[Tensor, " B"]
    seeds: Int64[Tensor, " B"]
    positions: Int64[Tensor, " B"]

    def target(self) -> LogitRows:
        """The target's rows from its raw logits: cutoffs where the sampler truncates, no normaliser where it does not.

        This is part of the work that is timed.
        """
        if self.target_params.truncates:
            return logit_rows(self.target_logits, self.target_params)
        return LogitRows(self.target_logits, self.target_params.temperature, self.target_cutoff, None)

    @cached_property
    def target_with_cutoffs(self) -> LogitRows:
        """As :meth:`target`, but made once: for verifiers whose times leave the search for the cutoff out."""
        return self.target()

    def inputs(self, cutoffs_known: bool = False) -> tuple[Draft, LogitRows, Streams]:
        """A verifier's arguments, made anew; the draft's normalisers are known since its tokens were drawn.

        Args:
            cutoffs_known: the target's rows come with cutoffs that were found before.
        """
        rows = LogitRows(self.draft_logits, self.draft_temperature, self.draft_cutoff, self.draft_log_normalizer)
        gamma = self.spec.gamma
        draft = Draft(self.token_ids, rows if self.spec.draft_probabilities else None, self.num_draft_tokens, gamma)
        target = self.target() if not cutoffs_known else self.target_with_cutoffs
        return draft, target, Streams(self.seeds, self.positions, gamma + 1)


def pair_of_logits(
    rows: int, bonus_rows: int, spec: CaseSpec, generator: torch.Generator
) -> tuple[Shaped[Tensor, "n V"], Shaped[Tensor, "m V"]]:
    """The draft's logits [rows, V] and the target's [rows + bonus_rows, V], those of each request together."""
    device, dtype = generator.device, getattr(torch, spec.dtype)
    total = rows + bonus_rows
    sharpness = torch.empty(total, 1, device=device).uniform_(*SHARPNESS, generator=generator)
    logits = torch.empty(total, spec.vocabulary, device=device).exponential_(generator=generator) * sharpness
    bonus = torch.arange(total, device=device) % (spec.gamma + 1) == spec.gamma
    draft = logits[~bonus].to(dtype)
    logits += NOISE * torch.empty_like(logits).normal_(generator=generator)
    return draft, logits.to(dtype)


def make_case(spec: CaseSpec, seed: int, number: int, device: torch.device) -> Case:
    """A case's logits and draft; the same for the same seed, number and kind of device.

    Args:
        number: tells several cases of one spec apart.
    """
    name = f"{spec.batch_size}/{spec.vocabulary}/{spec.gamma}/{spec.dtype}/{spec.sampler}/{number}"
    generator = torch.Generator(device).manual_seed(request_seed(seed, name))
    batch, gamma = spec.batch_size, spec.gamma
    draft_logits, target_logits = pair_of_logits(batch * gamma, batch, spec, generator)
    one = RowParams.of([spec.sampling], device)
    draft_params, target_params = (
        one.select(torch.zeros(len(logits), dtype=torch.int64, device=device))
        for logits in (draft_logits, target_logits)
    )
    rows = logit_rows(draft_logits, draft_params)
    seeds = torch.randint(2**62, (batch,), generator=generator, device=device)
    positions = torch.randint(POSITIONS, (batch,), generator=generator, device=device)
    if spec.draft_probabilities:
        u = Streams(seeds, positions, gamma + 1).uniform(Stream.DRAFT)[:, :gamma].flatten()
        token_ids = sample_rows(rows, u)
    else:
        token_ids = rows.argmax
    return Case(
        spec=spec,
        target_logits=target_logits,
        target_params=target_params,
        target_cutoff=torch.full_like(target_params.temperature, -torch.inf),
        token_ids=token_ids,
        draft_logits=draft_logits,
        draft_temperature=rows.temperature,
        draft_cutoff=rows.cutoff,
        draft_log_normalizer=rows.normalizer,
        num_draft_tokens=torch.full((batch,), gamma, device=device),
        seeds=seeds,
        positions=positions,
    )


def sample_rows(rows: LogitRows, u: Float[Tensor, " n"]) -> Int64[Tensor, " n"]:
    """:func:`specbench.sampling.sample`, a few rows at a time, so that the dense rows fit in memory."""
    chunks = torch.arange(len(rows), device=u.device).split(_AT_ONCE)
    return torch.cat([u.new_zeros(0, dtype=torch.int64), *(sample(rows.select(each), u[each]) for each in chunks)])
