"""The logits of a model along existing texts, by one teacher-forced pass, and log-probabilities of tokens from them.

The prompt is fed first and the continuation after it, so that a batch's attention, cache and positions are those of
decoding.

Verifiers discard their distributions with the block, and a fused one never forms a whole distribution. So the target
scores each text once more after decoding. Each token has its log-probability in plain decoding, up to the rounding of
other shapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float64, Shaped
from torch import Tensor

from specbench.core.types import LogitRows
from specbench.decoding.requests import Completion
from specbench.models import CachedModel, right_padded
from specbench.sampling import History, RowParams, SamplingParams, logit_rows


@torch.inference_mode()
def logits_along(
    model: CachedModel, prompts: Sequence[Sequence[int]], texts: Sequence[Sequence[int]]
) -> list[Shaped[Tensor, "n V"]]:
    """Returns the logits that each token of each text is drawn from, given the tokens before it.

    Args:
        prompts: of at least one token each.

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
    """Returns the distributions of n tokens of one text, which begin at position ``first`` of the text."""
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


@dataclass(frozen=True)
class TokenLogprob:
    """The log-probability of one token of a text, with the fields of vLLM's ``Logprob``.

    Attributes:
        logprob: natural logarithm; None for the first token of a prompt, which has no text before it.
        rank: the number of tokens that are at least as likely, itself included; 1 for the most likely token.
        top: the most likely tokens and their log-probabilities, the likeliest first, without impossible tokens.
    """

    token_id: int
    logprob: float | None
    rank: int | None
    top: list[tuple[int, float]]


@torch.inference_mode()
def completion_logprobs(target: CachedModel, completion: Completion) -> list[TokenLogprob] | None:
    """Returns the log-probability of every token of a continuation; None if its request sets no ``logprobs``.

    Raw log-probabilities (``logprobs_mode``) come from the target's logits as they are, processed ones from the
    distribution that the token was drawn from. At temperature 0 that distribution gives all mass to one token.
    """
    request, tokens = completion.request, completion.token_ids
    if request.sampling.logprobs is None:
        return None
    (logits,) = logits_along(target, [request.prompt], [tokens])
    if request.sampling.logprobs_mode == "processed_logprobs":
        log_probs = rows_along(logits, request.sampling, request.prompt, tokens).probs().log()
    else:
        log_probs = logits.double().log_softmax(dim=-1)
    return _by_token(log_probs, tokens, request.sampling.logprobs)


@torch.inference_mode()
def prompt_logprobs(target: CachedModel, completion: Completion) -> list[TokenLogprob] | None:
    """Returns the raw log-probability of every token of a prompt; None if its request sets no ``prompt_logprobs``."""
    prompt, count = completion.request.prompt, completion.request.sampling.prompt_logprobs
    if count is None:
        return None
    first, rest = TokenLogprob(prompt[0], None, None, []), prompt[1:]
    if not rest:
        return [first]
    (logits,) = logits_along(target, [prompt[:1]], [rest])
    return [first, *_by_token(logits.double().log_softmax(dim=-1), rest, count)]


def _by_token(log_probs: Float64[Tensor, "n V"], tokens: Sequence[int], count: int) -> list[TokenLogprob]:
    of_tokens = log_probs.gather(1, torch.tensor(list(tokens), device=log_probs.device)[:, None])
    ranks = (log_probs >= of_tokens).sum(dim=1).tolist()
    values, ids = log_probs.topk(min(count, log_probs.shape[1]), dim=1)
    tops = [
        [(token, value) for token, value in zip(*row, strict=True) if value > -torch.inf]
        for row in zip(ids.tolist(), values.tolist(), strict=True)
    ]
    return [TokenLogprob(*fields) for fields in zip(tokens, of_tokens[:, 0].tolist(), ranks, tops, strict=True)]
