"""The tokens before each position of a batch: the text of its request, and the draft tokens before the position.

Penalties, bans and grammars depend on them; temperature, top-k, top-p and min-p do not.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Int32, Int64
from torch import Tensor

from specbench.core.types import PADDING


@dataclass(frozen=True)
class TextCounts:
    """The tokens of B texts, each once, and how often each text contains them; see tally_kernel in kernels/tally.py.

    Attributes:
        texts, text_lengths, vocabulary: of the texts that were counted.
        list_lengths: tokens in each list; a request has one list a part.
        listed, counts: the tokens and their counts.
    """

    texts: Int64[Tensor, "B capacity"]
    text_lengths: Int64[Tensor, " B"]
    vocabulary: int
    list_lengths: Int32[Tensor, "B parts"]
    listed: Int32[Tensor, "B parts room"]
    counts: Int32[Tensor, "B parts room"]

    def is_of(self, history: History, vocabulary: int) -> bool:
        """Returns whether these are counts of the history's texts, in the same memory."""
        same = self.texts is history.texts and self.text_lengths is history.text_lengths
        return same and self.vocabulary == vocabulary


@dataclass(frozen=True)
class History:
    """The tokens before each of n positions of B requests.

    Attributes:
        texts: prompt and continuation of each request; columns at or beyond its length are not read.
        drafted: the draft tokens after each text.
        request: the request of each position. Kernels need the positions of a request to be consecutive, in the order
            of the requests, and the same number for each.
        offset: the number of draft tokens before each position.
        tally: the counts of the texts' tokens (:func:`specbench.sampling.tally`); None if they are not counted yet.
    """

    texts: Int64[Tensor, "B capacity"]
    prompt_lengths: Int64[Tensor, " B"]
    text_lengths: Int64[Tensor, " B"]
    drafted: Int64[Tensor, "B width"]
    request: Int64[Tensor, " n"]
    offset: Int64[Tensor, " n"]
    tally: TextCounts | None = None

    @cached_property
    def lengths(self) -> Int64[Tensor, " n"]:
        """The number of tokens before each position."""
        return self.text_lengths[self.request] + self.offset

    @cached_property
    def tokens(self) -> Int64[Tensor, "n longest"]:
        """The tokens before each position, the earliest first; -1 after the last."""
        width = self.drafted.shape[1]
        whole = torch.nn.functional.pad(self.texts, (0, width))
        columns = self.text_lengths[:, None] + torch.arange(width, device=whole.device)
        whole = whole.scatter(1, columns, self.drafted)[self.request]
        before = torch.arange(whole.shape[1], device=whole.device) < self.lengths[:, None]
        return torch.where(before, whole, PADDING)

    def counts(self, vocabulary: int) -> Int64[Tensor, "n vocabulary"]:
        """Returns the count of each token of the vocabulary before each position."""
        seen = (self.tokens != PADDING).long()
        counts = seen.new_zeros((len(seen), vocabulary))
        return counts.scatter_add_(1, self.tokens.clamp(min=0), seen)
