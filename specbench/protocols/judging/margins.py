"""T = 0 beside a checkpoint: by how much it prefers the plain engine's token where a speculative text parts."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from specbench.decoding import logits_along, rows_along
from specbench.protocols.judging.text_scorer import TextScorer
from specbench.sources import TextCompletion


class Margins:
    """Margins by the checkpoint, and how far the plain engine is from its argmax.

    Args:
        plain: the plain engine's greedy texts, with token ids.
    """

    def __init__(self, checkpoint: TextScorer, plain: Sequence[TextCompletion]):
        self._checkpoint = checkpoint
        self._behind = max((float(self._lost(text).max()) for text in plain if text.token_ids), default=0.0)

    def lead(self, text: TextCompletion, place: int, other: TextCompletion) -> float:
        """Nats by which a token of a plain text leads that of another text, less the most that any plain token is
        behind the checkpoint's argmax: by so much the engine's arithmetic is another.

        Raises:
            ConfigError: an id that the checkpoint does not have.
        """
        logits = self._logits(text)[place]
        ids, other_ids = (self._checkpoint.token_ids_of(completion)[1] for completion in (text, other))
        return float(logits[ids[place]] - logits[other_ids[place]]) - self._behind

    def _lost(self, text: TextCompletion) -> Float[Tensor, " n"]:
        logits = self._logits(text)
        tokens = torch.tensor(text.token_ids, device=logits.device)
        return logits.amax(dim=-1) - logits.gather(1, tokens[:, None])[:, 0]

    @torch.inference_mode()
    def _logits(self, text: TextCompletion) -> Float[Tensor, "n V"]:
        """The logits that a greedy text's tokens are chosen by, with penalties, biases and bans."""
        prompt, _ = self._checkpoint.token_ids_of(text)
        ids = list(text.token_ids or ())
        (logits,) = logits_along(self._checkpoint.models[0], [prompt], [ids])
        return rows_along(logits, self._checkpoint.sampling, prompt, ids).with_mask_applied().logits.float()
