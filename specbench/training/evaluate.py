"""What the model card states: held-out losses, and how much of the target's probability the draft covers."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import DynamicCache, LlamaForCausalLM


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
        values = [torch.nn.functional.cross_entropy(z.flatten(0, 1), y.flatten(), reduction="sum") for z in (logits_p, logits_q)]
        for temperature in (1.0, 0.7):
            p, q = (logits_p / temperature).softmax(-1), (logits_q / temperature).softmax(-1)
            values.append(torch.minimum(p, q).sum())
        values.append((logits_p.argmax(-1) == logits_q.argmax(-1)).sum())
        sums += torch.stack([v.double() for v in values])
    return dict(zip(names, (sums / (count * context)).tolist(), strict=True))


@torch.no_grad()
def sample(
    model: LlamaForCausalLM, prompts: Tensor, new_tokens: int, temperature: float, generator: torch.Generator
) -> Tensor:
    """Continues prompts [B, P]; returns [B, P + new_tokens]. Runs in bf16."""
    ids, fed, cache = prompts, prompts, DynamicCache()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        for _ in range(new_tokens):
            logits = model(fed, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[:, -1].float()
            fed = torch.multinomial((logits / temperature).softmax(-1), 1, generator=generator)
            ids = torch.cat([ids, fed], dim=1)
    return ids


def on_policy_stream(
    model: LlamaForCausalLM, tokens: Tensor, *, rounds: int, batch: int = 4096, prefix: int = 64, length: int = 512, seed: int = 0
) -> Tensor:
    """The target's own text, begun by prefixes from the corpus: [rounds * batch * length], int16.

    A draft meets the target's samples when it is used, and these drift from the corpus at temperature 1; distilling on
    them is what raises acceptance (Agarwal et al., on-policy distillation, arXiv 2306.13649). One round in three is
    drawn at temperature 0.7.
    """
    generator = torch.Generator(device=tokens.device).manual_seed(seed)
    window = torch.arange(prefix, device=tokens.device)
    parts = []
    for i in range(rounds):
        starts = torch.randint(len(tokens) - prefix, (batch, 1), generator=generator, device=tokens.device)
        temperature = 0.7 if i % 3 == 2 else 1.0
        text = sample(model, tokens[starts + window].long(), length - prefix, temperature, generator)
        parts.append(text.to(torch.int16).flatten())
    return torch.cat(parts)
