"""One training loop for both models: next-token loss for the target, distillation for the draft."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from experiments.embedded_pair.muon import StackedMuon
from specbench.core.machine import ranks

Loss = Callable[[Any, Tensor], Tensor]


def build(
    vocab_size: int, layers: int, width: int, heads: int, kv_heads: int, inner: int, context: int
) -> LlamaForCausalLM:
    """A freshly initialised Llama model with tied embeddings (token 0 is END_OF_TEXT)."""
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=width,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=width // heads,
        max_position_embeddings=context,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=None,
    )
    return LlamaForCausalLM(config)


def next_token_loss(model: LlamaForCausalLM, tokens: Tensor) -> Tensor:
    """Mean cross-entropy in nats of tokens [B, T + 1]."""
    logits = model(tokens[:, :-1], use_cache=False).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())


def distillation_loss(teacher: LlamaForCausalLM, share_of_tv: float) -> Loss:
    """(1 - s)·KL(p || q) + s·TV(p, q) at temperature 1.

    TV = 1 - sum min(p, q) is the rejection rate itself, but its gradient is weak far from the optimum, where KL's is
    strong; both are used (DistillSpec, arXiv 2310.08461, compares the divergences).
    """

    def loss(model: LlamaForCausalLM, tokens: Tensor) -> Tensor:
        inputs = tokens[:, :-1]
        with torch.no_grad():
            log_p = teacher(inputs, use_cache=False).logits.float().log_softmax(-1)
        log_q = model(inputs, use_cache=False).logits.float().log_softmax(-1)
        p = log_p.exp()
        kl = (p * (log_p - log_q)).sum(-1).mean()
        tv = 0.5 * (p - log_q.exp()).abs().sum(-1).mean()
        return (1 - share_of_tv) * kl + share_of_tv * tv

    return loss


def optimisers(model: nn.Module, learning_rate: float, weight_decay: float) -> list[torch.optim.Optimizer]:
    """Muon for the matrices inside the layers, AdamW for embeddings and norms (Jordan et al., 2024)."""
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    inside = {id(p) for p in matrices}
    others = [p for p in model.parameters() if id(p) not in inside]
    return [
        StackedMuon(matrices, lr=learning_rate, weight_decay=weight_decay),
        torch.optim.AdamW(others, lr=learning_rate, betas=(0.9, 0.95), weight_decay=0.0, fused=True),
    ]


def schedule(step: int, steps: int, warmup: int = 100, decay_share: float = 0.5) -> float:
    """Linear warm-up, plateau, linear decay to zero over the last half."""
    return min(1.0, (step + 1) / warmup, (steps - step) / (decay_share * steps))


def crops(tokens: Tensor, sequences: int, context: int, seed: int) -> Iterator[Tensor]:
    """Random windows [sequences, context + 1] of a stream of tokens [N], without end."""
    generator = torch.Generator(device=tokens.device).manual_seed(seed)
    window = torch.arange(context + 1, device=tokens.device)
    while True:
        starts = torch.randint(len(tokens) - context - 1, (sequences, 1), generator=generator, device=tokens.device)
        yield tokens[starts + window].long()


def alternating(tokens: Tensor, texts: Tensor, sequences: int, context: int, seed: int) -> Iterator[Tensor]:
    """:func:`crops`, and in every second step as many tokens in whole rows of ``texts`` [S, L]."""
    generator = torch.Generator(device=texts.device).manual_seed(seed + 1)
    count = max(1, sequences * context // (texts.shape[1] - 1))
    for crop in crops(tokens, sequences, context, seed):
        yield crop
        yield texts[torch.randint(len(texts), (count,), generator=generator, device=texts.device)].long()


def copy_from_first(model: nn.Module) -> None:
    """Gives every process the weights of the first."""
    for parameter in model.parameters():
        dist.broadcast(parameter.data, 0)


def average_gradients(model: nn.Module) -> None:
    """Replaces the gradients of each process by their mean over all of them, in one message."""
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for gradient, mean in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
        gradient.copy_(mean.view_as(gradient))


def train(
    model: nn.Module,
    batches: Iterator[Tensor],
    loss: Loss,
    *,
    steps: int,
    learning_rate: float,
    weight_decay: float = 0.1,
    label: str = "",
) -> list[dict[str, float | int]]:
    """Trains in place on the first ``steps`` of batches [B, T + 1]; returns the log. On a GPU in bf16 autocast.

    Where torch.distributed has a group, ``batches`` are this process' share of each step.
    """
    if dist.is_initialized():
        copy_from_first(model)
    optims = optimisers(model, learning_rate, weight_decay)
    log: list[dict[str, float | int]] = []
    started = time.perf_counter()
    for step, batch in enumerate(islice(batches, steps)):
        with torch.autocast(batch.device.type, dtype=torch.bfloat16, enabled=batch.is_cuda):
            value = loss(model, batch)
        value.backward()
        if dist.is_initialized():
            average_gradients(model)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optim in optims:
            for group in optim.param_groups:
                group["lr"] = learning_rate * schedule(step, steps)
            optim.step()
            optim.zero_grad(set_to_none=True)
        if step % 100 == 0 or step == steps - 1:
            seconds = time.perf_counter() - started
            log.append({"step": step, "loss": value.item(), "seconds": round(seconds, 1)})
            if ranks.is_rank0():
                print(label, json.dumps(log[-1]), flush=True)
    return log
