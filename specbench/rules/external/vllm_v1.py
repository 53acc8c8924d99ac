"""vLLM's first rejection sampler: vllm.v1.sample.rejection_sampler.RejectionSampler (vLLM 0.33.0).

Token verification (Leviathan et al., arXiv 2211.17192). Its path from logits to tokens: the bonus rows are gathered and
sampled by the engine's ordinary Sampler; the drafted rows are gathered, copied to fp32, cloned (for log-probabilities,
also where they are not asked for), divided by the temperature in place and softmaxed; exponential noise of vocabulary
size is drawn for each request; one kernel finds a recovered token for every drafted token, another accepts.

Read in the source:

- accepted where ``draft_prob > 0 and target_prob / draft_prob >= u`` with u in [0, 1), float64
  (rejection_random_sample_kernel): u = 0, once in 2^53, accepts a token of target probability 0.
- the recovered token is the argmax of max(p - q, 0) / noise (sample_recovered_tokens_kernel). Where p equals q all
  scores are 0 and it would be token 0; only a ratio that rounds below u gets there.
- a target row that bans every token gives token 0, its argmax, where other verifiers return padding.
- ``generate_uniform_probs`` and ``sample_recovered_tokens`` draw from the default generator for every request, and
  then overwrite the draws of requests with a generator of their own.
- the engine keeps q from drafting as fp32 probabilities of vocabulary size, from logits that were divided by the
  temperature in the model's dtype; here they are divided in fp32, since that is what the drafts were sampled from.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float32
from torch import Tensor

from specbench.core.errors import ArgumentError, ConfigError
from specbench.core.rng import Streams
from specbench.core.types import PADDING, Draft, LogitRows, Verification
from specbench.rules.external import adapter


@dataclass(frozen=True)
class _VllmV1Batch:
    """What the engine holds of a batch ahead of the step: its own metadata classes, and the seeds."""

    spec_decode: Any | None
    sampling: Any
    target: adapter.RowFacts
    seeds: list[int]


class VllmV1Verifier(adapter.ExternalVerifier):
    """Adapter of vLLM's V1 RejectionSampler.

    Limits: with ``seeding="call"`` one generator, seeded from the first request's seed and position, serves the whole
    batch, as for requests that set no seed; with "request" each has its own, which costs vLLM two to three launches a
    request and cannot be captured in a CUDA graph. At most 128 drafted tokens a request (ArgumentError). CUDA alone, or
    Triton's interpreter (TRITON_INTERPRET=1).

    Args:
        seeding: see above.
        draft_probs: "computed" in each call from the draft's logits; or "kept", as after the engine's own drafting:
            computed once for a draft, and then only gathered (torch.cat) in each call, as the engine does.

    Raises:
        NotInstalledError: vLLM is not installed.
        ConfigError: an unknown ``seeding`` or ``draft_probs``.
    """

    rule = "vllm_v1"

    def __init__(self, seeding: str = "call", draft_probs: str = "computed") -> None:
        if seeding not in ("call", "request"):
            raise ConfigError("verifier.seeding", seeding, "unknown", "Use call or request.")
        self.seeding, self.draft_probs = seeding, adapter.check_draft_probs(draft_probs)
        self._rejection = adapter.load("vllm.v1.sample.rejection_sampler", "external/vllm_v1", "vllm")
        self._metadata = adapter.load("vllm.v1.sample.metadata", "external/vllm_v1", "vllm")
        self._processors = adapter.load("vllm.v1.sample.logits_processor", "external/vllm_v1", "vllm")
        self._spec_metadata = adapter.load("vllm.v1.spec_decode.metadata", "external/vllm_v1", "vllm")
        self._sampler = adapter.load("vllm.v1.sample.sampler", "external/vllm_v1", "vllm").Sampler()
        self._rejection_sampler = self._rejection.RejectionSampler(self._sampler)
        request = seeding == "request"
        self.limits = adapter.Limits(adapter.triton_device(), batch_invariant=request, capturable=not request)
        self.interpreted = adapter.triton_device() is None
        self._batch: adapter.Memo[_VllmV1Batch] = adapter.Memo()
        self._draft_facts: adapter.Memo[adapter.RowFacts] = adapter.Memo()
        self._kept: adapter.Memo[list[Tensor]] = adapter.Memo()

    def verify(self, draft: Draft, target: LogitRows, streams: Streams) -> Verification:
        self.check(draft, target, streams)
        most = self._rejection.MAX_SPEC_LEN
        if draft.max_draft_tokens > most:
            raise ArgumentError(f"draft.max_draft_tokens: {draft.max_draft_tokens}; vllm_v1 takes {most} at most")
        sources = [draft.token_ids, draft.num_draft_tokens, streams.seeds, streams.positions]
        batch = self._batch(sources + adapter.RowFacts.sources(target), lambda: self._describe(draft, target, streams))
        device = target.logits.device
        if self.seeding == "request":
            for request, generator in batch.sampling.generators.items():
                generator.manual_seed(batch.seeds[request])
        logits = adapter.masked(target, batch.target)
        with adapter.private_generator(device, batch.seeds[0]):
            if batch.spec_decode is None:
                # It divides fp32 logits by the temperature in place: an engine's are its own.
                token_ids = self._sampler(logits.clone(), batch.sampling).sampled_token_ids
            else:
                q = self._probs(draft, batch)
                output = self._rejection_sampler(batch.spec_decode, q, logits, batch.sampling)
                token_ids = output.sampled_token_ids
        token_ids = adapter.widened(token_ids, draft.max_draft_tokens + 1)
        return Verification(token_ids, adapter.accepted_before(token_ids == PADDING))

    def _probs(self, draft: Draft, batch: _VllmV1Batch) -> Float32[Tensor, "n V"] | None:
        rows = draft.rows
        if rows is None or batch.sampling.all_greedy:  # the library does not look at q then
            return None
        facts = self._draft_facts(adapter.RowFacts.sources(rows), lambda: adapter.RowFacts.of(rows))
        if self.draft_probs == "computed":
            return adapter.softmax(rows, facts)
        counts = [count for count in batch.spec_decode.num_draft_tokens if count] if batch.spec_decode else []
        sources = [rows.logits, draft.num_draft_tokens, *adapter.RowFacts.sources(rows)]
        kept = self._kept(sources, lambda: list(adapter.softmax(rows, facts).split(counts)))
        return torch.cat(kept)

    def _describe(self, draft: Draft, target: LogitRows, streams: Streams) -> _VllmV1Batch:
        device = target.logits.device
        counts = draft.num_draft_tokens.tolist()
        facts = adapter.RowFacts.of(target)
        sampled = draft.num_draft_tokens + 1
        bonus = sampled.cumsum(0) - 1
        greedy = [facts.greedy[row] for row in bonus.tolist()]
        generators = {}
        if self.seeding == "request":
            generators = {request: torch.Generator(device) for request in range(len(counts))}
        penalties = torch.zeros(0, device=device)
        sampling = self._metadata.SamplingMetadata(
            temperature=None if all(greedy) else target.temperature[bonus].float(),
            all_greedy=all(greedy),
            all_random=not any(greedy),
            top_p=None,
            top_k=None,
            generators=generators,
            max_num_logprobs=None,
            no_penalties=True,
            prompt_token_ids=None,
            frequency_penalties=penalties,
            presence_penalties=penalties,
            repetition_penalties=penalties,
            output_token_ids=[[] for _ in counts],
            allowed_token_ids_mask=None,
            bad_words_token_ids={},
            logitsprocs=self._processors.LogitsProcessors(),
        )
        spec_decode = None
        if len(draft.token_ids):
            rows = torch.arange(len(target), device=device)
            spec_decode = self._spec_metadata.SpecDecodeMetadata(
                draft_token_ids=draft.token_ids.int(),
                num_draft_tokens=counts,
                cu_num_draft_tokens=draft.num_draft_tokens.cumsum(0).int(),
                cu_num_sampled_tokens=sampled.cumsum(0).int(),
                target_logits_indices=rows[~torch.isin(rows, bonus)].int(),
                bonus_logits_indices=bonus.int(),
                logits_indices=rows.int(),
            )
        return _VllmV1Batch(spec_decode, sampling, facts, adapter.library_seeds(streams).tolist())
