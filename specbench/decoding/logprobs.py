"""Log-probabilities of tokens under the target, from a pass of its own over the finished text.

What a verifier needs of a block is gone once the block is decided, and a fused one never forms a whole distribution. So
decoding keeps nothing: afterwards the target scores each text once, teacher-forced, whichever way it was decoded. Every
token of it has the log-probability that plain decoding would have told, but for the rounding of other shapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float64
from torch import Tensor

from specbench.decoding.requests import Completion
from specbench.decoding.scorer import logits_along, rows_along
from specbench.models import Engine


@dataclass(frozen=True)
class TokenLogprob:
    """One token of a text, and what the target thinks of it; vLLM's ``Logprob`` has the same.

    Attributes:
        logprob: natural logarithm; None for the first token of a prompt, which nothing precedes.
        rank: how many tokens are at least as likely, itself included: 1 for the most likely one.
        top: the most likely tokens and their log-probabilities, the likeliest first; fewer than asked for if no others
            can come.
    """

    token_id: int
    logprob: float | None
    rank: int | None
    top: list[tuple[int, float]]


@torch.inference_mode()
def completion_logprobs(target: Engine, completion: Completion) -> list[TokenLogprob] | None:
    """Of every token of a continuation; None if its request does not ask.

    Raw ones (``logprobs_mode``) are of the target's logits as they are; processed ones of the distribution that the
    token was drawn from, in which temperature 0 gives all mass to one token.
    """
    request, tokens = completion.request, completion.token_ids
    if request.sampling.logprobs is None:
        return None
    (logits,) = logits_along(target, [request.prompt], [tokens])
    if request.sampling.logprobs_mode == "processed_logprobs":
        found = rows_along(logits, request.sampling, request.prompt, tokens).probs().log()
    else:
        found = logits.double().log_softmax(dim=-1)
    return _told(found, tokens, request.sampling.logprobs)


@torch.inference_mode()
def prompt_logprobs(target: Engine, completion: Completion) -> list[TokenLogprob] | None:
    """Of every token of a prompt, raw; None if its request does not ask."""
    prompt, count = completion.request.prompt, completion.request.sampling.prompt_logprobs
    if count is None:
        return None
    first, rest = TokenLogprob(prompt[0], None, None, []), prompt[1:]
    if not rest:
        return [first]
    (logits,) = logits_along(target, [prompt[:1]], [rest])
    return [first, *_told(logits.double().log_softmax(dim=-1), rest, count)]


def _told(found: Float64[Tensor, "n V"], tokens: Sequence[int], count: int) -> list[TokenLogprob]:
    own = found.gather(1, torch.tensor(list(tokens), device=found.device)[:, None])
    ranks = (found >= own).sum(dim=1).tolist()
    values, ids = found.topk(min(count, found.shape[1]), dim=1)
    tops = [
        [(token, value) for token, value in zip(*each, strict=True) if value > -torch.inf]
        for each in zip(ids.tolist(), values.tolist(), strict=True)
    ]
    return [TokenLogprob(*each) for each in zip(tokens, own[:, 0].tolist(), ranks, tops, strict=True)]
