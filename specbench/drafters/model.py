"""Drafting with the pair's small model: at most gamma forward passes, each sampling the next token."""

from __future__ import annotations

import dataclasses

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from specbench.core.draft_lengths import LengthPolicy, policy_of
from specbench.core.fusion import fusible
from specbench.core.rng import Stream, Streams
from specbench.core.sampling_params import DEFAULTS, TRUNCATIONS
from specbench.core.sampling_values import number
from specbench.core.types import Draft, LogitRows
from specbench.drafters.drafter import Drafter
from specbench.drafters.lengths import cut_before, cut_behind, cut_empty, is_over
from specbench.models import CachedModel, Pair, cached_draft
from specbench.models.cpu_model import CpuModel
from specbench.sampling import SamplingParams, draw, logit_rows
from specbench.sampling.batch import Batch

check_temperature = number(
    "[0, inf)", "Use null for the target's, 0 for the most likely token, or 0.001 and more.", 1e-3
)


class ModelDrafter(Drafter):
    """Samples from the draft model under the sampling parameters of the target.

    Args:
        temperature: of the drafts alone; None is the target's. q is the distribution that was sampled, so any
            temperature is lossless. At 0 drafts are the draft model's most likely tokens, with q 1 at each of them.
        policy: when a draft ends before gamma tokens: "fixed" (never), "probability" or "entropy"; see
            specbench/core/draft_lengths.py.
        threshold: of the policy: a probability, or nats.

    Raises:
        ConfigError: a temperature below 0, or an unknown policy or threshold.
    """

    has_probabilities = True
    needs_draft_model = True
    most_pending = 2  # tokens of a text that the model was not fed: the last drafted token and the bonus token

    def __init__(self, temperature: object = None, policy: object = "fixed", threshold: object = None):
        self.temperature = None if temperature is None else float(check_temperature("drafter.temperature", temperature))
        self.policy = policy_of(policy, threshold)

    def _attach(self, pair: Pair, target: CachedModel) -> None:
        self.check(pair.draft is not None)
        self.model = cached_draft(pair)
        self.caches = (self.model,)

    def sampled_with(self, sampling: SamplingParams) -> SamplingParams:
        if self.temperature is None:
            return sampling
        untruncated = {name: DEFAULTS[name] for name in TRUNCATIONS} if sampling.greedy else {}
        return dataclasses.replace(sampling, temperature=self.temperature, **untruncated)

    def propose(self, batch: Batch, limits: Int64[Tensor, " B"], streams: Streams) -> Draft:
        device, most, policy = batch.lengths.device, streams.width - 1, self.policy
        if most == 0:
            return Draft.empty(len(batch), device)
        batch = self._at_own_temperature(batch)
        uniforms, counts = streams.uniform(Stream.DRAFT), limits
        if native := self._bound_model.native_draft(batch):
            return _drafted_in_one_call(native, batch, counts, uniforms, policy)
        drafted, all_rows = torch.zeros((len(batch), most), dtype=torch.int64, device=device), []
        uniforms = uniforms.T.contiguous()  # kernels read those of a place side by side
        for i in range(most):
            if i == 0:
                logits = self._logits_after(batch)
            elif not batch.fixed and is_over(policy, counts, i):
                break
            else:
                goes_on = torch.gt(counts, i, out=torch.empty_like(counts))  # as numbers, by one kernel
                logits = self._bound_model.extend(drafted[:, i - 1 : i], goes_on).logits[:, 0]
            q = batch.rows(logits, drafted[:, :i], first=i)
            if self._bound_model.lacks_tokens:
                counts = cut_empty(q, counts, i)
            counts = cut_before(policy, q, counts, i)
            tokens, rows = draw(q, uniforms[i])
            all_rows.append(rows)
            # A row with NaN has no token to feed. The verifier reads its normaliser, and the decoder reports the model.
            torch.clamp(tokens, min=0, out=drafted[:, i])
            counts = cut_behind(policy, q, drafted[:, i], counts, i)
        width = len(all_rows)
        # The very rows that were sampled from, so that no row is normalised twice. Kernels read contiguous ids, which
        # flatten() does not return of a single column.
        token_ids = drafted[:, :width].flatten().contiguous()
        return Draft(token_ids, LogitRows.interleave(all_rows), counts, width, padded=True)

    @property
    def _bound_model(self) -> CachedModel:
        assert self.model is not None, "bind first"
        return self.model

    def _at_own_temperature(self, batch: Batch) -> Batch:
        """Returns the batch with the parameters of :meth:`sampled_with` for each request."""
        if self.temperature is None:
            return batch
        params, random = batch.params, batch.params.temperature > 0
        # A greedy request is not truncated, whatever the others of its batch are.
        truncation = {name: torch.where(random, getattr(params, name), DEFAULTS[name]) for name in TRUNCATIONS}
        temperature = torch.full_like(params.temperature, self.temperature)
        draft_params = dataclasses.replace(params, temperature=temperature, **truncation)
        return dataclasses.replace(batch, params=draft_params)

    def _logits_after(self, batch: Batch) -> Float[Tensor, "B V"]:
        """Returns the draft model's logits after each text, of which it is fed what is not cached yet."""
        # A block accepted whole leaves two tokens unfed, the last drafted and the bonus; otherwise one is pending.
        cached = self._bound_model.lengths
        pending = batch.lengths - cached
        fed = batch.span(cached, batch.at_most(pending, self.most_pending))
        return _behind_last(self._bound_model.extend(fed, pending).logits, pending)


@fusible
def _behind_last(logits: Float[Tensor, "B n V"], counts: Int64[Tensor, " B"]) -> Float[Tensor, "B V"]:
    """Returns the logits after the last of each request's tokens; those after the first if it has none."""
    rows = torch.arange(len(logits), device=logits.device)
    return logits[rows, (counts - 1).clamp(min=0)]


def _drafted_in_one_call(
    native: CpuModel,
    batch: Batch,
    counts: Int64[Tensor, " B"],
    uniforms: Float64[Tensor, "B width"],
    policy: LengthPolicy,
) -> Draft:
    drawn = (batch.params.temperature, uniforms, policy)
    counts, tokens, logits, normalizers = native.draft(batch.tokens, batch.lengths, counts, *drawn)
    width = tokens.shape[1]
    if width == 0:
        return Draft.empty(len(batch), counts.device)
    rows = logit_rows(logits.flatten(0, 1), batch.params, log_normalizer=normalizers.flatten(), width=width)
    return Draft(tokens.flatten(), rows, counts, width, padded=True)
