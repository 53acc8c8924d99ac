"""The logits that a model gives along texts that are there already: one teacher-forced pass.

The prompt is fed first and the continuation after it, so that a batch's attention, cache and positions are those of
decoding.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Shaped
from torch import Tensor

from specbench.core.types import LogitRows
from specbench.models import Engine, right_padded
from specbench.sampling import History, RowParams, SamplingParams, logit_rows


@torch.inference_mode()
def logits_along(
    engine: Engine, prompts: Sequence[Sequence[int]], texts: Sequence[Sequence[int]], width: int | None = None
) -> list[Shaped[Tensor, "n V"]]:
    """The logits from which each token of each text is drawn, by the tokens before it.

    Args:
        prompts: of at least one token each.
        texts: what follows each prompt.
        width: tokens fed at once, as a step of decoding with ``width - 1`` drafted tokens does; None feeds all.

    Returns:
        For each text [its tokens, V], in the model's dtype.
    """
    counts = torch.tensor([len(text) for text in texts], device=engine.device)
    fed = right_padded([[prompt[-1], *text[:-1]] for prompt, text in zip(prompts, texts, strict=True)], engine.device)
    width = width or fed.shape[1]
    engine.start(prompts, max(map(len, prompts)) + fed.shape[1] + width)
    parts = [
        engine.extend(fed[:, start : start + width], (counts - start).clamp(0, width))
        for start in range(0, fed.shape[1], width)
    ]
    logits = torch.cat(parts, dim=1)
    return [logits[b, : len(text)] for b, text in enumerate(texts)]


def rows_along(
    logits: Shaped[Tensor, "n V"], sampling: SamplingParams, prompt: Sequence[int], text: Sequence[int], first: int = 0
) -> LogitRows:
    """The distributions that n tokens of one text are drawn from, the first of them at place ``first`` of the text.

    Args:
        logits: what :func:`logits_along` gives at these places.
    """
    n, device = len(logits), logits.device
    none = torch.zeros(n, dtype=torch.int64, device=device)
    length = torch.tensor([len(prompt)], device=device)
    history = History(
        torch.tensor([list(prompt)], dtype=torch.int64, device=device),
        length,
        length,
        torch.tensor([list(text)], dtype=torch.int64, device=device),
        none,
        torch.arange(first, first + n, device=device),
    )
    return logit_rows(logits, RowParams.of([sampling], device).select(none), history)
