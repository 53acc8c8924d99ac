"""Drafting with the pair's small model: gamma forward passes, each sampling the next token."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from specbench.batch import Batch, known_max
from specbench.drafters.base import Drafter
from specbench.models import Engine, Pair
from specbench.rng import Stream, Streams
from specbench.sampling import draw
from specbench.types import Draft, LogitRows

_MOST_PENDING = 2  # tokens of a text that were never fed: the last drafted one and the bonus


class ModelDrafter(Drafter):
    """Samples from the draft model under the same sampling parameters as the target's."""

    has_probabilities = True

    def _attach(self, pair: Pair, target: Engine) -> None:
        self.engine = self._model = Engine(pair.draft, pair.vocab_size, "draft")

    def start(self, prompts: Sequence[Sequence[int]], capacity: int) -> None:
        """See :class:`specbench.drafters.Drafter`."""
        self._model.start(prompts, capacity)

    def admit(self, prompts: Sequence[Sequence[int]], capacity: int) -> None:
        """See :class:`specbench.drafters.Drafter`."""
        self._model.admit(prompts, capacity)

    def propose(self, batch: Batch, limits: Int64[Tensor, " B"], streams: Streams) -> Draft:
        """See :class:`specbench.drafters.Drafter`."""
        device, width = batch.lengths.device, streams.width - 1
        if width == 0:
            return Draft.empty(len(batch), device)
        logits = self._logits_after(batch)
        uniforms = streams.uniform(Stream.DRAFT)
        all_tokens, all_rows = [], []
        for i in range(width):
            if i > 0:
                logits = self._model.extend(all_tokens[-1][:, None], (limits > i).long())[:, 0]
            drafted = torch.stack(all_tokens, dim=1) if i else batch.tokens[:, :0]
            tokens, rows = draw(batch.rows(logits, drafted, first=i), uniforms[:, i])
            all_rows.append(rows)
            # A row with NaN has no token to feed; the verifier meets its normaliser, and the decoder names it.
            all_tokens.append(tokens.clamp(min=0))
        # The very rows that were sampled from: nothing is normalised twice.
        token_ids = torch.stack(all_tokens, dim=1).flatten()
        return Draft(token_ids, LogitRows.interleave(all_rows), limits, width, padded=True)

    def _logits_after(self, batch: Batch) -> Float[Tensor, "B V"]:
        """The draft model's logits after each text, of which it is fed what it has not seen."""
        # A block accepted whole leaves two tokens unfed, the last drafted and the bonus; otherwise one is pending.
        pending = batch.lengths - self._model.lengths
        fed = batch.span(self._model.lengths, known_max(pending, _MOST_PENDING))
        logits = self._model.extend(fed, pending)
        return logits[torch.arange(len(batch), device=logits.device), (pending - 1).clamp(min=0)]

    def commit(self, agreed: Int64[Tensor, " B"]) -> None:
        """See :class:`specbench.drafters.Drafter`."""
        self._model.truncate(agreed)

    def bound(self, longest: int) -> None:
        """See :class:`specbench.drafters.Drafter`."""
        self._model.bound(longest)

    def keep(self, rows: Sequence[int]) -> None:
        """See :class:`specbench.drafters.Drafter`."""
        self._model.keep(rows)
