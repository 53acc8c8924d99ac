"""How much of a pair's target a draft of another vocabulary can say: the target's probability of the tokens that both
have, where texts were decoded. Token-level intersection accepts a drafted token with this probability at most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specbench.decoding import Completion, logits_along, rows_along
from specbench.metrics.intervals import columns, ratio_of_sums
from specbench.protocols.model_context import ModelContext, unit_of


def shared_fields(
    context: ModelContext, completions: Sequence[Completion], scored: Sequence[Mapping[str, Tensor]] | None = None
) -> dict[str, Any]:
    """RunRow's columns of what is shared; none for a pair of one vocabulary.

    Args:
        scored: the columns of each text, if it was scored (protocols/scoring.py); the target scores it here if not.
    """
    translation = context.pair.translation
    if translation is None:
        return {}
    shared = translation.shared.to(context.device)
    if scored is None:
        sums = [_mass(context, completion, shared) for completion in completions]
    else:
        sums = [float(columns["shared"].double().sum()) for columns in scored]
    tokens = np.array([len(completion.token_ids) for completion in completions])
    mass = ratio_of_sums(np.array(sums), tokens, [unit_of(completion.request) for completion in completions])
    assert mass is not None, "every text has a token"
    return {"shared_tokens": int(shared.sum()), **columns("shared_mass", mass)}


@torch.inference_mode()
def _mass(context: ModelContext, completion: Completion, shared: Tensor) -> float:
    """The target's probability of the tokens ``shared`` [V], summed over the places of a text."""
    prompt, text = completion.request.prompt, completion.token_ids
    rows = rows_along(logits_along(context.target, [prompt], [text])[0], completion.request.sampling, prompt, text)
    return float(rows.probs()[:, shared].sum())
