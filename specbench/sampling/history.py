"""What precedes each position at which a distribution is asked for: the text of its request, and the drafted tokens
before it. Penalties, bans and grammars depend on it; temperature, top-k, top-p and min-p do not."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from specbench.core.sampling_params import SamplingParams
from specbench.core.types import PADDING


@dataclass(frozen=True)
class History:
    """The tokens before each of n positions of B requests.

    Attributes:
        texts: the text of each request; what stands at or beyond its length does not count.
        prompt_lengths: tokens of each text that were given; the others are its continuation so far.
        text_lengths: tokens of each text.
        drafted: what was drafted after each text.
        request: the request of each position; for kernels those of a request stand together, as many for each, in the
            order of the requests.
        offset: how many of the drafted tokens precede each position.
        tally: what :func:`specbench.sampling.tally` made of the texts, so that kernels need not count them again.
    """

    texts: Int64[Tensor, "B capacity"]
    prompt_lengths: Int64[Tensor, " B"]
    text_lengths: Int64[Tensor, " B"]
    drafted: Int64[Tensor, "B width"]
    request: Int64[Tensor, " n"]
    offset: Int64[Tensor, " n"]
    tally: Any = None

    @cached_property
    def lengths(self) -> Int64[Tensor, " n"]:
        """How many tokens precede each position."""
        return self.text_lengths[self.request] + self.offset

    @cached_property
    def tokens(self) -> Int64[Tensor, "n longest"]:
        """The tokens before each position, the earliest first; -1 behind the last."""
        width = self.drafted.shape[1]
        whole = torch.nn.functional.pad(self.texts, (0, width))
        columns = self.text_lengths[:, None] + torch.arange(width, device=whole.device)
        whole = whole.scatter(1, columns, self.drafted)[self.request]
        before = torch.arange(whole.shape[1], device=whole.device) < self.lengths[:, None]
        return torch.where(before, whole, PADDING)

    def counts(self, vocabulary: int) -> Int64[Tensor, "n vocabulary"]:
        """How often each token of the vocabulary precedes each position."""
        seen = (self.tokens != PADDING).long()
        counts = seen.new_zeros((len(seen), vocabulary))
        return counts.scatter_add_(1, self.tokens.clamp(min=0), seen)


@runtime_checkable
class Processor(Protocol):
    """Changes logits by what precedes them, before temperature and truncation; for target and draft alike.

    A drafted token is then tested against the very distribution that plain decoding would have drawn from. This holds
    only if row i of the result depends on row i of the logits and on what precedes position i, and on nothing else.

    One that works on the host has an attribute ``capturable``, which is False: no CUDA graph can hold its step.
    """

    def __call__(self, logits: Float[Tensor, "n V"], history: History) -> Float[Tensor, "n V"]:
        """New logits, -inf for a token that may not come. Those given are not to be changed."""
        ...


def on_host(params: SamplingParams) -> str:
    """What of the parameters works on the host, so that no CUDA graph can hold a step; empty for nothing."""
    if params.structured_outputs is not None:
        return "sampler.structured_outputs"
    return host_processors(params.processors)


def host_processors(processors: Iterable[object]) -> str:
    """The names of those that work on the host."""
    return ", ".join(type(each).__name__ for each in processors if not getattr(each, "capturable", True))
