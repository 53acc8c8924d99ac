"""Penalties, biases and bans in plain PyTorch; the twin of kernels/shape.py and kernels/think.py.

They are applied in the order of vLLM's sampler (docs.vllm.ai, vllm.v1.sample.sampler, steps 3 to 6): allowed_token_ids,
bad_words, min_tokens, logit_bias, repetition_penalty, frequency_penalty, presence_penalty, thinking_token_budget. The
first three give -inf, which only the last changes, so that only the order of the others matters::

    l <- l + bias
    l <- l / r if l > 0 else l * r          r = repetition_penalty, if prompt or continuation contains the token
    l <- l - frequency_penalty * count - presence_penalty * (count > 0)      count: in the continuation
    l <- 0 for the end of thinking, -inf for other tokens                    if the thinking budget is spent

Thinking goes on after its start token, in the prompt or the continuation, until its end token; a start token during
thinking counts as a token of it. The budget is spent if thinking goes on and has had that number of tokens.

The draft tokens before a row belong to its continuation. Computed in float64, and rounded to the logits' dtype.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float64, Int64, Shaped
from torch import Tensor

from specbench.core.mask import Mask
from specbench.core.types import PADDING
from specbench.sampling.history import History
from specbench.sampling.shaping import BIAS, DELAY, FORBID, PENALISE, RESTRICT, THINK, Shaping


def shaped(logits: Shaped[Tensor, "n V"], shaping: Shaping, history: History) -> Shaped[Tensor, "n V"]:
    """Returns new logits after the parameters of each row; the module docstring has the formulas."""
    values, prompt = logits.double(), history.prompt_lengths[history.request]
    if BIAS in shaping.kinds:
        ids = shaping.bias_ids.clamp(min=0)  # entries after the last add 0
        values = values.scatter_add(1, ids, torch.where(shaping.bias_ids >= 0, shaping.bias, 0.0))
    if PENALISE in shaping.kinds:
        values = _penalised(values, shaping, history, prompt)
    banned = torch.zeros((len(logits), logits.shape[1] + 1), dtype=torch.bool, device=logits.device)
    if RESTRICT in shaping.kinds:
        banned[:, :-1] |= Mask(shaping.restricted, shaping.allowed, 1).banned(logits.shape[1])
    if FORBID in shaping.kinds:
        _ban(banned, shaping.bad_words[:, :, 0], _completed(shaping.bad_words, history, prompt))
    if DELAY in shaping.kinds:
        early = history.lengths - prompt < shaping.min_tokens
        _ban(banned, shaping.ending_ids, early[:, None].expand(shaping.ending_ids.shape))
    values = values.masked_fill(banned[:, :-1], -math.inf)
    if THINK in shaping.kinds:
        ids = torch.arange(logits.shape[1], device=logits.device)
        only_end = torch.where(ids == shaping.thinking_end[:, None], 0.0, -math.inf).double()
        values = torch.where(thinking_spent(shaping, history)[:, None], only_end, values)
    return values.float().to(logits.dtype)


def thinking_spent(shaping: Shaping, history: History) -> Bool[Tensor, " n"]:
    """Returns whether the end of thinking is forced at each position."""
    tokens = history.tokens
    places = torch.arange(tokens.shape[1], device=tokens.device)
    ended = torch.where(tokens == shaping.thinking_end[:, None], places, -1).amax(dim=1)
    begins = (tokens == shaping.thinking_start[:, None]) & (places > ended[:, None])
    started = torch.where(begins, places, history.lengths[:, None]).amin(dim=1)
    return (shaping.thinking_budget >= 0) & (history.lengths - started - 1 >= shaping.thinking_budget)


def _penalised(
    values: Float64[Tensor, "n V"], shaping: Shaping, history: History, prompt: Int64[Tensor, " n"]
) -> Float64[Tensor, "n V"]:
    tokens = history.tokens
    places = torch.arange(tokens.shape[1], device=tokens.device)

    def count(counted: Bool[Tensor, "n longest"]) -> Float64[Tensor, "n V"]:
        return torch.zeros_like(values).scatter_add(1, tokens.clamp(min=0), counted.double())

    present = count(tokens != PADDING) > 0
    emitted = count((tokens != PADDING) & (places >= prompt[:, None]))
    repetition = shaping.repetition[:, None]
    values = torch.where(present, torch.where(values > 0, values / repetition, values * repetition), values)
    return values - shaping.frequency[:, None] * emitted - shaping.presence[:, None] * (emitted > 0)


def _completed(
    bad_words: Int64[Tensor, "n sequences longest"], history: History, prompt: Int64[Tensor, " n"]
) -> Bool[Tensor, "n sequences"]:
    """Returns whether the continuation ends with a sequence without its last token."""
    match = torch.ones(bad_words.shape[:2], dtype=torch.bool, device=bad_words.device)
    for back in range(1, bad_words.shape[2]):
        place, wanted = history.lengths - back, bad_words[:, :, back]
        token = history.tokens.gather(1, place.clamp(min=0)[:, None])
        match &= (wanted == PADDING) | ((wanted == token) & (place >= prompt)[:, None])
    return match


def _ban(banned: Bool[Tensor, "n V1"], ids: Int64[Tensor, "n m"], where: Bool[Tensor, "n m"]) -> None:
    """Bans the ids of each row in place; entries without an id go to the last column, beyond the vocabulary."""
    banned.scatter_(1, torch.where(where & (ids >= 0), ids, banned.shape[1] - 1), True)
