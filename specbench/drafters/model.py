"""Drafting with the pair's small model: gamma forward passes, each sampling the next token."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from specbench.batch import Batch
from specbench.drafters.base import Drafter
from specbench.models import Engine, Pair, draft_engine
from specbench.rng import Stream, Streams
from specbench.sampling import draw
from specbench.types import Draft, LogitRows

_MOST_PENDING = 2  # tokens of a text that were never fed: the last drafted one and the bonus


class ModelDrafter(Drafter):
    """Samples from the draft model under the same sampling parameters as the target's."""

    has_probabilities = True

    def _attach(self, pair: Pair, target: Engine) -> None:
        self.engine = self.own = draft_engine(pair)

    def propose(self, batch: Batch, limits: Int64[Tensor, " B"], streams: Streams) -> Draft:
        """See :class:`specbench.drafters.Drafter`."""
        device, width, model = batch.lengths.device, streams.width - 1, self._model
        if width == 0:
            return Draft.empty(len(batch), device)
        logits = self._logits_after(batch)
        uniforms = streams.uniform(Stream.DRAFT)
        drafted, all_rows = torch.zeros((len(batch), width), dtype=torch.int64, device=device), []
        for i in range(width):
            if i > 0:
                logits = model.extend(drafted[:, i - 1 : i], (limits > i).long())[:, 0]
            tokens, rows = draw(batch.rows(logits, drafted[:, :i], first=i), uniforms[:, i])
            all_rows.append(rows)
            # A row with NaN has no token to feed; the verifier meets its normaliser, and the decoder names it.
            drafted[:, i] = tokens.clamp(min=0)
        # The very rows that were sampled from: nothing is normalised twice.
        return Draft(drafted.flatten(), LogitRows.interleave(all_rows), limits, width, padded=True)

    @property
    def _model(self) -> Engine:
        assert self.own is not None, "bind first"
        return self.own

    def _logits_after(self, batch: Batch) -> Float[Tensor, "B V"]:
        """The draft model's logits after each text, of which it is fed what it has not seen."""
        # A block accepted whole leaves two tokens unfed, the last drafted and the bonus; otherwise one is pending.
        pending = batch.lengths - self._model.lengths
        fed = batch.span(self._model.lengths, batch.at_most(pending, _MOST_PENDING))
        logits = self._model.extend(fed, pending)
        return logits[torch.arange(len(batch), device=logits.device), (pending - 1).clamp(min=0)]
