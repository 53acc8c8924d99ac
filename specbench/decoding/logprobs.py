"""Log-probabilities of tokens under the target, from a pass of its own over the finished text.

Verifiers discard their distributions with the block, and a fused one never forms a whole distribution. So the target
scores each text once more after decoding, teacher-forced. Each token has its log-probability in plain decoding, up to
the rounding of other shapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float64
from torch import Tensor

from specbench.decoding.requests import Completion
from specbench.decoding.scorer import logits_along, rows_along
from specbench.models import CachedModel


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
