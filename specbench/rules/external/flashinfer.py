"""FlashInfer's ``flashinfer.sampling.chain_speculative_sampling`` (flashinfer-python 0.7.2.post1).

Token verification (Chen et al., arXiv 2302.01318) from dense fp32 probabilities, one thread block a request. The
probabilities are made with FlashInfer's own fused ``softmax``, which takes the temperature of each row; that is the
fastest road to this function that the library has (it copies the logits to fp32 first).

Read in the source (include/flashinfer/sampling.cuh, ChainSpeculativeSampling; its p is the draft, q the target):

- accepted where ``u * draft < target`` with u = curand_uniform in (0, 1]: u rounds to 1 about once in 2^25, and then
  rejects a token of equal probabilities.
- after such a rejection p - q can be 0 everywhere; no index is found, and ``last_valid_id``, which this kernel (unlike
  the others in the file) never initialises, is emitted: whatever shared memory held.
- a target row that bans every token gives the same at temperatures above 0, where other verifiers return padding. At
  temperature 0 it gives token 0, its argmax, which the adapter's row is one-hot at.
- one uniform of 24 to 32 bits picks the recovered token from a cumulative sum over the whole row.
- the row's index in the batch is the Philox subsequence, also where each request has its own seed.
- ``output_accepted_token_num`` goes on counting after the first rejection; the number emitted is the other output.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float32, Int32, Int64
from torch import Tensor

from specbench.core.rng import Streams
from specbench.core.types import Draft, LogitRows, Verification
from specbench.rules.external import adapter

_ALIGNMENT = 16  # bytes that its kernels load at once, from the first on; an engine's logits begin where they may


@dataclass(frozen=True)
class _FlashinferBatch:
    target: adapter.RowFacts
    draft: adapter.RowFacts | None
    token_ids: Int32[Tensor, "B gamma"]
    seeds: Int64[Tensor, " B"]
    offsets: Int64[Tensor, " one"]


class FlashinferVerifier(adapter.ExternalVerifier):
    """Adapter of FlashInfer's chain_speculative_sampling; a seed for each request.

    Limits: CUDA alone; each request must draft the same number of tokens, at least one (ArgumentError); a request's
    tokens depend on its place in the batch. Drafts without probabilities are given as dense one-hot rows.

    Args:
        draft_probs: "computed" in each call from the draft's logits; or "kept": computed once for a draft, as an engine
            that sampled the draft from these probabilities has them.

    Raises:
        NotInstalledError: FlashInfer is not installed.
        ConfigError: an unknown ``draft_probs``.
    """

    rule = "flashinfer"
    limits = adapter.Limits(device="cuda", ragged=False, empty=False, batch_invariant=False)

    def __init__(self, draft_probs: str = "computed") -> None:
        self.draft_probs = adapter.check_draft_probs(draft_probs)
        self._sampling = adapter.load("flashinfer.sampling", "external/flashinfer", "flashinfer")
        self._batch: adapter.Memo[_FlashinferBatch] = adapter.Memo()
        self._kept: adapter.Memo[Tensor] = adapter.Memo()

    def verify(self, draft: Draft, target: LogitRows, streams: Streams) -> Verification:
        self.check(draft, target, streams)
        sources = [draft.token_ids, streams.seeds, streams.positions, *adapter.RowFacts.sources(target, draft.rows)]
        batch = self._batch(sources, lambda: _describe(draft, target, streams))
        requests, gamma = batch.token_ids.shape
        p = self._softmax(target, batch.target).unflatten(0, (requests, gamma + 1))
        q = self._draft(draft, batch, target.logits.shape[1]).unflatten(0, (requests, gamma))
        token_ids, _, num_emitted_drafts = self._sampling.chain_speculative_sampling(
            q, batch.token_ids, p, seed=batch.seeds, offset=batch.offsets
        )
        return Verification(token_ids.long(), num_emitted_drafts.long())

    def _draft(self, draft: Draft, batch: _FlashinferBatch, vocabulary: int) -> Float32[Tensor, "n V"]:
        rows, facts = draft.rows, batch.draft
        if rows is None or facts is None:
            return adapter.one_hot(draft.token_ids, vocabulary)
        if self.draft_probs == "computed":
            return self._softmax(rows, facts)
        sources = [rows.logits, *adapter.RowFacts.sources(rows)]
        return self._kept(sources, lambda: self._softmax(rows, facts))

    def _softmax(self, rows: LogitRows, facts: adapter.RowFacts) -> Float32[Tensor, "n V"]:
        logits = adapter.masked(rows, facts).contiguous()
        if logits.data_ptr() % _ALIGNMENT:
            logits = logits.clone()
        probs = self._sampling.softmax(logits, temperature=facts.temperature)
        return adapter.make_greedy_one_hot(probs, rows, facts)


def _describe(draft: Draft, target: LogitRows, streams: Streams) -> _FlashinferBatch:
    shape = (len(draft.num_draft_tokens), draft.max_draft_tokens)
    return _FlashinferBatch(
        target=adapter.RowFacts.of(target),
        draft=None if draft.rows is None else adapter.RowFacts.of(draft.rows),
        token_ids=draft.token_ids.int().view(shape),
        # The position is part of the seed, so every call may begin at offset 0 of its stream.
        seeds=adapter.library_seeds(streams),
        offsets=torch.zeros(1, dtype=torch.int64, device=target.logits.device),
    )
