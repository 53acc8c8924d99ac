"""The logits of a model along existing texts, by one teacher-forced pass.

The prompt is fed first and the continuation after it, so that a batch's attention, cache and positions are those of
decoding.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Shaped
from torch import Tensor

from specbench.core.types import LogitRows
from specbench.models import CachedModel, right_padded
from specbench.sampling import History, RowParams, SamplingParams, logit_rows


@torch.inference_mode()
def logits_along(
    model: CachedModel, prompts: Sequence[Sequence[int]], texts: Sequence[Sequence[int]]
) -> list[Shaped[Tensor, "n V"]]:
    """Returns the logits that each token of each text is drawn from, given the tokens before it.

    Args:
        prompts: of at least one token each.
        texts: the continuation of each prompt.

    Returns:
        For each text [its tokens, V], in the model's dtype.
    """
    counts = torch.tensor([len(text) for text in texts], device=model.device)
    fed = right_padded([[prompt[-1], *text[:-1]] for prompt, text in zip(prompts, texts, strict=True)], model.device)
    model.start(prompts, max(map(len, prompts)) + fed.shape[1])
    logits = model.extend(fed, counts).logits
    return [logits[b, : len(text)] for b, text in enumerate(texts)]


def rows_along(
    logits: Shaped[Tensor, "n V"], sampling: SamplingParams, prompt: Sequence[int], text: Sequence[int], first: int = 0
) -> LogitRows:
    """Returns the distributions that n tokens of one text are drawn from, beginning at position ``first`` of the text.

    Args:
        logits: of :func:`logits_along` at these positions.
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
