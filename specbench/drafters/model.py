"""Drafting with the pair's small model: gamma forward passes, each sampling the next token."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from specbench.drafters.base import ragged_index
from specbench.models import Engine, Pair, right_padded
from specbench.rng import Stream, Streams
from specbench.sampling import RowParams, draw, logit_rows
from specbench.types import Draft, LogitRows


class ModelDrafter:
    """Samples from the draft model under the same sampling parameters as the target's."""

    def __init__(self, pair: Pair):
        self.engine = Engine(pair.draft, pair.vocab_size, "draft")

    def start(self, prompts: Sequence[Sequence[int]], capacity: int) -> None:
        """See :class:`specbench.drafters.Drafter`."""
        self.engine.start(prompts, capacity)

    def propose(
        self, sequences: Sequence[Sequence[int]], limits: Sequence[int], params: RowParams, streams: Streams
    ) -> Draft:
        """See :class:`specbench.drafters.Drafter`."""
        device, width = self.engine.device, max(limits)
        num_draft_tokens = torch.tensor(list(limits), device=device)
        if width == 0:
            return Draft.empty(len(sequences), device)
        # A block accepted whole leaves two tokens unfed, the last drafted and the bonus; otherwise one is pending.
        pending = [
            list(sequence[cached:]) if limit else []
            for sequence, cached, limit in zip(sequences, self.engine.lengths, limits, strict=True)
        ]
        logits = self.engine.extend(right_padded(pending, device), [len(tokens) for tokens in pending])
        last = torch.tensor([max(len(tokens) - 1, 0) for tokens in pending], device=device)
        logits = logits[torch.arange(len(pending), device=device), last]

        uniforms = streams.uniform(Stream.DRAFT)
        all_tokens, all_rows = [], []
        for i in range(width):
            if i > 0:
                logits = self.engine.extend(all_tokens[-1][:, None], [int(limit > i) for limit in limits])[:, 0]
            tokens, rows = draw(logit_rows(logits, params), uniforms[:, i])
            all_rows.append(rows)
            # A row with NaN has no token to feed; the verifier meets its normaliser, and the decoder names it.
            all_tokens.append(tokens.clamp(min=0))
        index = ragged_index(limits, width, device)
        token_ids = torch.stack(all_tokens, dim=1).flatten()[index]
        # The very rows that were sampled from: nothing is normalised twice.
        return Draft(token_ids, LogitRows.interleave(all_rows).select(index), num_draft_tokens, width)

    def commit(self, agreed: Sequence[int]) -> None:
        """See :class:`specbench.drafters.Drafter`."""
        self.engine.truncate(agreed)

    def keep(self, rows: Sequence[int]) -> None:
        """See :class:`specbench.drafters.Drafter`."""
        self.engine.keep(rows)
