"""What the model card states: held-out losses, and how much of the target's probability the draft covers."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import LlamaForCausalLM


@torch.no_grad()
def evaluate_pair(
    target: LlamaForCausalLM, draft: LlamaForCausalLM, tokens: Tensor, context: int, sequences: int = 32
) -> dict[str, float]:
    """Over the whole held-out stream [N] in windows of ``context``: losses in nats a token and overlaps.

    overlap_T = mean over positions of sum_x min(p_T(x), q_T(x)), the token rule's acceptance probability.
    """
    count = (len(tokens) - 1) // context
    inputs = tokens[: count * context].view(count, context)
    labels = tokens[1 : count * context + 1].view(count, context)
    names = ("target_loss", "draft_loss", "overlap_1.0", "overlap_0.7", "same_argmax")
    sums = torch.zeros(len(names), dtype=torch.float64, device=tokens.device)
    for start in range(0, count, sequences):
        x, y = inputs[start : start + sequences].long(), labels[start : start + sequences].long()
        logits_p = target(x, use_cache=False).logits.float()
        logits_q = draft(x, use_cache=False).logits.float()
        values = [
            torch.nn.functional.cross_entropy(z.flatten(0, 1), y.flatten(), reduction="sum")
            for z in (logits_p, logits_q)
        ]
        for temperature in (1.0, 0.7):
            p, q = (logits_p / temperature).softmax(-1), (logits_q / temperature).softmax(-1)
            values.append(torch.minimum(p, q).sum())
        values.append((logits_p.argmax(-1) == logits_q.argmax(-1)).sum())
        sums += torch.stack([v.double() for v in values])
    return dict(zip(names, (sums / (count * context)).tolist(), strict=True))
