"""Hugging Face transformers' ``_speculative_sampling`` (transformers.generation.utils; read in 5.23.0).

Token verification (Leviathan et al., arXiv 2211.17192) of one request, from logits that its logits processors have
scaled and masked. The adapter loops over the requests, since assisted generation takes a batch of one, and does for
each what ``_assisted_decoding`` does: fp32 copy, clone, processors on one position after another.

Read in the source:

- ``is_accepted = r_i <= probability_ratio`` with r_i = torch.rand in [0, 1), fp32: r_i = 0, on a CPU once in 2^24,
  accepts a token of target probability 0. (q = 0 cannot have been drafted; 0 / 0 is NaN, which is refused.)
- the residual is divided by its sum without a look at it: where p equals q but for rounding and a ratio falls below r,
  the sum can be 0, and torch.multinomial raises on NaN. Only with an ensemble weight does it fall back to p.
- torch.multinomial raises likewise for a target row that bans every token, where other verifiers return padding.
- fp32 uniforms have 24 bits, so ratios are resolved to 6e-8.
- ``n_matches`` stays on the device and is compared and indexed with on the host: several waits a request.
- greedy requests and drafts without logits do not reach this function: ``_assisted_decoding`` compares the draft with
  the argmax, or with one sample a position (sample matching, which accepts with probability p(x) as well).
- ``candidate_length`` 0 slices ``[:, -0:]``, the whole sequence; harmless with the ids that the adapter passes.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass

import torch
from jaxtyping import Float32
from torch import Tensor
from transformers.generation import utils

from specbench.core.rng import Streams
from specbench.core.types import PADDING, Draft, LogitRows, Verification
from specbench.rules.external import adapter


@dataclass(frozen=True)
class _TransformersBatch:
    counts: list[int]
    target: adapter.RowFacts
    draft: adapter.RowFacts | None
    seeds: list[int]


class TransformersVerifier(adapter.ExternalVerifier):
    """Adapter of transformers' ``_speculative_sampling``; each request is seeded by itself.

    Limits: waits for the device several times a request, so it is no subject for a CUDA graph. Greedy requests and
    drafts without probabilities are given to the function as one-hot rows, which it handles, though the library takes
    another branch there: times of those cases are the function's, not the library's.
    """

    rule = "transformers"
    limits = adapter.Limits(capturable=False)

    def __init__(self) -> None:
        parameters = inspect.signature(utils._speculative_sampling).parameters
        # Older releases of 5.x stop one short of a finished candidate; a verification step is never the last.
        self._options = {"is_done_candidate": False} if "is_done_candidate" in parameters else {}
        self._batch: adapter.Memo[_TransformersBatch] = adapter.Memo()

    def verify(self, draft: Draft, target: LogitRows, streams: Streams) -> Verification:
        self.check(draft, target, streams)
        sources = [draft.num_draft_tokens, streams.seeds, streams.positions]
        sources += adapter.RowFacts.sources(target, draft.rows)
        batch = self._batch(sources, lambda: _describe(draft, target, streams))
        shape = (len(batch.counts), draft.max_draft_tokens + 1)
        token_ids = torch.full(shape, PADDING, device=target.logits.device)
        first = 0
        for request, count in enumerate(batch.counts):
            drafted = slice(first, first + count)
            scored = slice(first + request, first + request + count + 1)
            emitted = self._one(draft, drafted, target, scored, batch, batch.seeds[request])
            token_ids[request, : emitted.shape[1]] = emitted[0]
            first += count
        return Verification(token_ids, adapter.accepted_before(token_ids == PADDING))

    def _one(
        self, draft: Draft, drafted: slice, target: LogitRows, scored: slice, batch: _TransformersBatch, seed: int
    ) -> Tensor:
        """The emitted tokens [1, accepted + 1] of one request."""
        candidate = draft.token_ids[drafted][None]
        p_logits = target.logits[scored].to(torch.float32, copy=True)[None]
        unprocessed = p_logits.clone()  # the library keeps one for output_logits, asked for or not
        _process(p_logits, unprocessed, target, batch.target, scored.start)
        if draft.rows is None or batch.draft is None:
            q_logits = adapter.one_hot(candidate[0], p_logits.shape[-1]).log()[None]
        else:
            raw = draft.rows.logits[drafted].to(torch.float32, copy=True)[None]
            q_logits = torch.empty_like(raw)
            _process(q_logits, raw, draft.rows, batch.draft, drafted.start)
        with adapter.private_generator(target.logits.device, seed):
            emitted, _ = utils._speculative_sampling(candidate, q_logits, candidate.shape[1], p_logits, **self._options)
        return emitted


def _process(
    out: Float32[Tensor, "1 n V"],
    logits: Float32[Tensor, "1 n V"],
    rows: LogitRows,
    facts: adapter.RowFacts,
    first: int,
) -> None:
    """Temperature and mask, one position after another, as ``_assisted_decoding`` runs its logits processors."""
    for i in range(logits.shape[1]):
        row = first + i
        if facts.greedy[row]:
            out[:, i] = -torch.inf
            best = rows.logits[row].argmax(keepdim=True)[None]
            out[:, i].scatter_(1, best, logits[:, i].gather(1, best))  # -inf in a row that bans every token
            continue
        scores = logits[:, i] / facts.temperature[row]
        if facts.truncated:
            scores = scores.masked_fill(rows.logits[row] < facts.cutoff[row], -torch.inf)
        out[:, i] = scores


def _describe(draft: Draft, target: LogitRows, streams: Streams) -> _TransformersBatch:
    return _TransformersBatch(
        counts=draft.num_draft_tokens.tolist(),
        target=adapter.RowFacts.of(target),
        draft=None if draft.rows is None else adapter.RowFacts.of(draft.rows),
        seeds=adapter.library_seeds(streams).tolist(),
    )
