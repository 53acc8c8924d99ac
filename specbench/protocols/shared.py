"""How much of a pair's target a draft of another vocabulary can say: the target's probability of the tokens that both
have, where texts were decoded. Token-level intersection accepts a drafted token with this probability at most."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from specbench.decoding import Completion, logits_along, rows_along
from specbench.metrics.intervals import columns, ratio_of_sums
from specbench.protocols.base import ModelContext


@torch.inference_mode()
def shared_fields(context: ModelContext, completions: Sequence[Completion]) -> dict[str, Any]:
    """RunRow's columns of what is shared; none for a pair of one vocabulary."""
    translation = context.pair.translation
    if translation is None:
        return {}
    shared, sums, counts = translation.shared.to(context.device), [], []
    for each in completions:
        prompt, text = each.request.prompt, each.token_ids
        rows = rows_along(logits_along(context.target, [prompt], [text])[0], each.request.sampling, prompt, text)
        sums.append(float(rows.probs()[:, shared].sum()))
        counts.append(len(text))
    mass = ratio_of_sums(np.array(sums), np.array(counts))
    assert mass is not None, "every text has a token"
    return {
        "shared_tokens": int(shared.sum()),
        **columns("shared_mass", mass),
    }
