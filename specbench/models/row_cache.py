"""Memory with a row for each request of a batch, such as a key-value cache: what the decoding engine asks of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from jaxtyping import Int64
from torch import Tensor


class RowCache:
    """The base class. Every method but :meth:`feed` has a default that fits memory which never needs to be taken back.

    The decoding engine calls these methods between steps as requests come, move and end, and ``truncate`` inside a
    step. Memory that a step reads is tensors that are changed in place, so that a CUDA graph can hold the step.

    Attributes:
        layout: changes whenever a tensor that a step reads is allocated anew, which makes captured graphs invalid.
        feeds_fixed: whether prompts can be fed in fixed shapes (``CachedModel.feed_fixed``).
    """

    layout: int = 0
    feeds_fixed: ClassVar[bool] = False

    @property
    def state(self) -> tuple[Tensor, ...]:
        """The tensors that a step changes in place and the next step reads; saved around a trial step."""
        return ()

    def start(self, prompts: Sequence[Sequence[int]], capacity: int) -> object:
        """Forgets all requests, and places these prompts, which may be none, in the leading rows.

        Args:
            prompts: token ids of each request, at least one.
            capacity: tokens of a text and of a draft behind it, at most.
        """
        self.reserve(len(prompts), capacity)
        self.place(prompts, range(len(prompts)))
        self.show(len(prompts))

    def reserve(self, rows: int, capacity: int) -> None:
        """Allocates memory for at least ``rows`` requests of ``capacity`` tokens each. Keeps what is stored."""

    def place(self, prompts: Sequence[Sequence[int]], rows: Sequence[int]) -> object:
        """Stores whole prompts in these rows, whose earlier requests are forgotten.

        The last token of a prompt belongs to the first step, as the last token of any text belongs to the next one.
        """
        return self.feed([prompt[:-1] for prompt in prompts], rows, [0] * len(prompts))

    def feed(self, pieces: Sequence[Sequence[int]], rows: Sequence[int], first: Sequence[int]) -> object:
        """Stores a piece of each prompt, if prompts come in pieces (``engine.prompt_chunk``).

        Args:
            pieces: consecutive tokens of each prompt, possibly none; never its last token.
            rows: the row of each prompt.
            first: tokens of each prompt that were fed before; at 0 the row forgets its earlier request.
        """

    def move(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copies the requests of some rows to others, whose own are lost. No row is in both lists."""

    def show(self, rows: int, longest: int | None = None) -> None:
        """Sets the number of leading rows that steps work on from now on; 0 forgets all requests.

        Args:
            longest: an upper bound on the tokens cached of any request, so that the host need not read it from the
                device. None: shapes must not depend on what is cached, as in a captured step.
        """

    def truncate(self, lengths: Int64[Tensor, " B"], path: Int64[Tensor, "B depth"] | None = None) -> None:
        """Takes rejected tokens back: each request keeps its first ``lengths`` tokens at most.

        Args:
            path: if the draft was a tree, the indices of its accepted tokens, in order, then negative numbers
                (:class:`specbench.core.types.Verification`). They end a text of ``lengths`` tokens.
        """
