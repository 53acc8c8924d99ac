"""Drafting with the pair's small model: at most gamma forward passes, each sampling the next token."""

from __future__ import annotations

import dataclasses
import math

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from specbench.core.draft_lengths import policy_of
from specbench.core.errors import ConfigError
from specbench.core.rng import Stream, Streams
from specbench.core.types import Draft, LogitRows
from specbench.drafters.base import Drafter
from specbench.drafters.lengths import cut_before, cut_behind, over
from specbench.models import Engine, Pair, draft_engine
from specbench.sampling import SamplingParams, draw
from specbench.sampling.batch import Batch


class ModelDrafter(Drafter):
    """Samples from the draft model under the sampling parameters of the target.

    Args:
        temperature: of the drafts alone; None is the target's. q is the distribution that was sampled, so any
            temperature is lossless. At 0 drafts are the draft model's most likely tokens, and q is 1 at each.
        policy: when a draft ends before gamma tokens: "fixed" (never), "probability" or "entropy"; see
            specbench/core/draft_lengths.py.
        threshold: of the policy: a probability, or nats.

    Raises:
        ConfigError: a temperature below 0, or a policy or threshold that there is not.
    """

    has_probabilities = True
    needs_draft_model = True
    most_pending = 2  # tokens of a text that were never fed: the last drafted one and the bonus

    def __init__(self, temperature: object = None, policy: object = "fixed", threshold: object = None):
        self.temperature = None if temperature is None else _checked(temperature)
        self.policy = policy_of(policy, threshold)

    def _attach(self, pair: Pair, target: Engine) -> None:
        self.check_draft(pair.draft is not None)
        self.engine = self.own = draft_engine(pair)

    def sampled_with(self, sampling: SamplingParams) -> SamplingParams:
        """See :class:`specbench.drafters.Drafter`."""
        if self.temperature is None:
            return sampling
        nothing_cut = {"top_k": 0, "top_p": 1.0, "min_p": 0.0} if sampling.greedy else {}
        return dataclasses.replace(sampling, temperature=self.temperature, **nothing_cut)

    def propose(self, batch: Batch, limits: Int64[Tensor, " B"], streams: Streams) -> Draft:
        """See :class:`specbench.drafters.Drafter`."""
        device, most, model, policy = batch.lengths.device, streams.width - 1, self._model, self.policy
        if most == 0:
            return Draft.empty(len(batch), device)
        batch = self._at_own_temperature(batch)
        uniforms, counts = streams.uniform(Stream.DRAFT), limits
        drafted, all_rows = torch.zeros((len(batch), most), dtype=torch.int64, device=device), []
        for i in range(most):
            if i == 0:
                logits = self._logits_after(batch)
            elif not batch.fixed and over(policy, counts, i):
                break
            else:
                logits = model.extend(drafted[:, i - 1 : i], (counts > i).long())[:, 0]
            q = batch.rows(logits, drafted[:, :i], first=i)
            counts = cut_before(policy, q, counts, i)
            tokens, rows = draw(q, uniforms[:, i])
            all_rows.append(rows)
            # A row with NaN has no token to feed; the verifier meets its normaliser, and the decoder names it.
            drafted[:, i] = tokens.clamp(min=0)
            counts = cut_behind(policy, q, drafted[:, i], counts, i)
        width = len(all_rows)
        # The very rows that were sampled from: nothing is normalised twice. Kernels read ids that lie side by side,
        # which flatten() leaves apart where one column is left.
        token_ids = drafted[:, :width].flatten().contiguous()
        return Draft(token_ids, LogitRows.interleave(all_rows), counts, width, padded=True)

    @property
    def _model(self) -> Engine:
        assert self.engine is not None, "bind first"
        return self.engine

    def _at_own_temperature(self, batch: Batch) -> Batch:
        """The batch as drafts are sampled from it: each request as :meth:`sampled_with` has it."""
        if self.temperature is None:
            return batch
        params, random = batch.params, batch.params.temperature > 0
        own = dataclasses.replace(
            params,
            temperature=torch.full_like(params.temperature, self.temperature),
            # Nothing is cut of a greedy request, whoever stands beside it.
            top_k=torch.where(random, params.top_k, 0),
            top_p=torch.where(random, params.top_p, 1),
            min_p=torch.where(random, params.min_p, 0),
        )
        return dataclasses.replace(batch, params=own)

    def _logits_after(self, batch: Batch) -> Float[Tensor, "B V"]:
        """The draft model's logits after each text, of which it is fed what it has not seen."""
        # A block accepted whole leaves two tokens unfed, the last drafted and the bonus; otherwise one is pending.
        pending = batch.lengths - self._model.lengths
        fed = batch.span(self._model.lengths, batch.at_most(pending, self.most_pending))
        logits = self._model.extend(fed, pending)
        return logits[torch.arange(len(batch), device=logits.device), (pending - 1).clamp(min=0)]


def _checked(temperature: object) -> float:
    number = isinstance(temperature, int | float) and not isinstance(temperature, bool)
    if not number or not (temperature == 0 or 1e-3 <= temperature < math.inf):
        remedy = "Use null for the target's, 0 for the most likely token, or 0.001 and more."
        raise ConfigError("drafter.temperature", temperature, "not a temperature", remedy)
    return float(temperature)
