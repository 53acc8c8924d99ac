"""vLLM's second rejection sampler, of its model runner V2 (vLLM 0.33.0).

``rejection_sample`` of vllm.v1.worker.gpu.spec_decode.rejection_sampler_utils: token verification (Leviathan et al.,
arXiv 2211.17192), or block verification (Sun et al., arXiv 2403.10444) with ``block=True``, in four to six Triton
kernels over logits. Its path from logits to tokens: where any request samples at a temperature other than 1 or
truncates, an fp32 copy of all rows, divided by the temperature in place; statistics of blocks of 8,192 tokens of every
drafted row; accept; Gumbel noise over the row to resample; insert. Drafts are kept as raw logits in the model's dtype.

Read in the source:

- accepted where ``log p > log u + log q`` in fp32 (_rejection_kernel). Where p equals q, a u next to 1 is absorbed by
  log q and the token rejected, about once in 2^24 for a likely token and more often for an unlikely one; the residual
  is then -inf everywhere, and token 0 is emitted whatever p says (_resample_kernel).
- a target row that bans every token gives token 0, its argmax, where other verifiers return padding.
- u is 31 bits from Philox and never below 4.7e-10, so a token with p/q below that is never accepted.
- block verification accepts where ``u <= h``; one seed a step (spec_step_seed) keeps its uniforms apart.
- noise has fp32 resolution (murmur3_uniform32), a hash of seed, position and token instead of Philox.
- one temperature a request serves target and draft alike.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float32, Int32, Int64, Shaped
from torch import Tensor

from specbench.core.errors import ArgumentError
from specbench.core.rng import Streams
from specbench.core.types import PADDING, Draft, LogitRows, Verification
from specbench.rules.external import adapter


@dataclass(frozen=True)
class _VllmV2Batch:
    """What the engine uploads of a batch ahead of the step."""

    target: adapter.RowFacts
    draft: adapter.RowFacts | None
    slot: Int64[Tensor, " drafts"] | None
    temperature: Float32[Tensor, " B"]
    scales: bool
    seeds: Int64[Tensor, " B"]
    cu_num_logits: Int32[Tensor, " B1"]
    requests: Int32[Tensor, " B"]
    request_of_logit: Int32[Tensor, " n"]
    place_of_logit: Int32[Tensor, " n"]
    position: Int64[Tensor, " n"]
    drafted: Int64[Tensor, " n"]


class VllmV2Verifier(adapter.ExternalVerifier):
    """Adapter of vLLM's ``rejection_sample`` for model runner V2; per-request seeds.

    Limits: the draft must have the target's temperature (ArgumentError). Ragged drafts are copied into the engine's
    layout of equal lengths in each call, which the engine spares by drafting into it; so is a draft with a cutoff,
    since the engine drafts without one. A batch above 1 GiB of fp32 logits is done whole, where the engine splits it.
    CUDA alone, or Triton's interpreter (TRITON_INTERPRET=1), which lacks the log1p that drafts with logits need.

    Args:
        block: block instead of token verification (vLLM's rejection_sample_method "block").

    Raises:
        NotInstalledError: vLLM is not installed.
    """

    rule = "vllm_v2"

    def __init__(self, block: bool = False) -> None:
        package = "vllm.v1.worker.gpu"
        self._utils = adapter.load(f"{package}.spec_decode.rejection_sampler_utils", "external/vllm_v2", "vllm")
        self._gumbel = adapter.load(f"{package}.sample.gumbel", "external/vllm_v2", "vllm")
        self.block, self.rule = block, "vllm_v2_block" if block else "vllm_v2"
        self.limits = adapter.Limits(adapter.triton_device())
        self.interpreted = adapter.triton_device() is None
        self._batch: adapter.Memo[_VllmV2Batch] = adapter.Memo()

    def verify(self, draft: Draft, target: LogitRows, streams: Streams) -> Verification:
        self.check(draft, target, streams)
        sources = [draft.token_ids, draft.num_draft_tokens, streams.seeds, streams.positions]
        sources += adapter.RowFacts.sources(target, draft.rows)
        batch = self._batch(sources, lambda: _describe(draft, target, streams))
        token_ids, num_emitted = self._utils.rejection_sample(
            self._processed(target, batch),
            _laid_out(draft, batch),
            batch.drafted,
            batch.cu_num_logits,
            batch.position,
            batch.requests,
            batch.request_of_logit,
            batch.place_of_logit,
            batch.temperature,
            batch.seeds,
            draft.max_draft_tokens,
            use_block_verification=self.block,
        )
        # The library leaves what follows the emitted tokens uninitialised.
        columns = torch.arange(draft.max_draft_tokens + 1, device=token_ids.device)
        token_ids = token_ids.masked_fill(columns >= num_emitted[:, None], PADDING)
        return Verification(token_ids, num_emitted.long() - 1)

    def _processed(self, target: LogitRows, batch: _VllmV2Batch) -> Shaped[Tensor, "n V"]:
        """Sampler.apply_sampling_params: nothing at all where every request is greedy or samples the raw logits."""
        if not batch.scales and not batch.target.truncated:
            return target.logits
        logits = torch.empty_like(target.logits, dtype=torch.float32).copy_(target.logits)
        if batch.scales:
            self._gumbel.apply_temperature(logits, batch.request_of_logit, batch.temperature)
        if batch.target.truncated:
            logits.masked_fill_(target.logits < batch.target.cutoff[:, None], -torch.inf)
        return logits


def _laid_out(draft: Draft, batch: _VllmV2Batch) -> Shaped[Tensor, "B gamma V"] | None:
    """The draft's logits in the engine's layout; a view where no request is shorter and no cutoff applies."""
    if draft.rows is None or batch.draft is None or len(draft.token_ids) == 0:
        return None
    logits = adapter.masked(draft.rows, batch.draft)
    shape = (len(batch.requests), draft.max_draft_tokens)
    if batch.slot is not None:
        logits = logits.new_zeros(shape[0] * shape[1], logits.shape[1]).index_copy_(0, batch.slot, logits)
    return logits.unflatten(0, shape)


def _describe(draft: Draft, target: LogitRows, streams: Streams) -> _VllmV2Batch:
    device = target.logits.device
    counts = draft.num_draft_tokens
    batch_size = len(counts)
    bonus = (counts + 1).cumsum(0) - 1
    temperature = target.temperature[bonus].float()
    if draft.rows is not None and not torch.equal(draft.rows.temperature.float(), temperature[draft.request_of_row]):
        raise ArgumentError("draft.rows.temperature: vllm_v2 divides draft and target by one temperature a request")
    requests = torch.arange(batch_size, device=device)
    request_of_logit = requests.repeat_interleave(counts + 1, output_size=len(target))
    first_logit = bonus - counts
    place = torch.arange(len(target), device=device) - first_logit[request_of_logit]
    # Row i of a request holds the token fed there: drafted token i - 1, or the last of the context in row 0.
    drafted = torch.zeros(len(target), dtype=torch.int64, device=device)
    drafted[place > 0] = draft.token_ids
    ragged = len(draft.token_ids) != batch_size * draft.max_draft_tokens
    return _VllmV2Batch(
        target=adapter.RowFacts.of(target),
        draft=None if draft.rows is None else adapter.RowFacts.of(draft.rows),
        slot=draft.request_of_row * draft.max_draft_tokens + place[place > 0] - 1 if ragged else None,
        temperature=temperature,
        scales=bool(((temperature != 0) & (temperature != 1)).any()),
        seeds=adapter.library_seeds(streams),
        cu_num_logits=torch.cat([bonus.new_zeros(1), bonus + 1]).int(),
        requests=requests.int(),
        request_of_logit=request_of_logit.int(),
        place_of_logit=place.int(),
        position=streams.positions[request_of_logit] + place,
        drafted=drafted,
    )
