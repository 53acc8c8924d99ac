"""Prompts that are fed in pieces, so that requests which decode meanwhile never wait for a whole one.

Chunked prefill of serving engines (Agrawal et al., "Taming throughput-latency tradeoff in LLM inference with
Sarathi-Serve", arXiv 2403.02310), with one difference: there a piece is part of a step's forward pass. Here it is a
pass of its own between two steps, so that steps keep their shapes, and their CUDA graphs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import islice


@dataclass
class _Prompt:
    """What is to be fed of a prompt: all but its last token, which the first step feeds."""

    tokens: Sequence[int]
    fed: int = 0

    @property
    def left(self) -> int:
        return len(self.tokens) - self.fed


@dataclass(frozen=True)
class Pieces:
    """What is fed at once, one piece a row.

    Attributes:
        rows: that the prompts stand in.
        tokens: of each piece; none for a prompt of a single token.
        first: how many tokens of each prompt were fed before.
        last: whether each prompt is whole afterwards.
    """

    rows: list[int]
    tokens: list[Sequence[int]]
    first: list[int]
    last: list[bool]

    @property
    def fed(self) -> list[int]:
        """How many tokens of each prompt are fed afterwards."""
        return [first + len(tokens) for first, tokens in zip(self.first, self.tokens, strict=True)]


class PromptQueue:
    """Prompts by the rows of their requests. Who came first is fed first."""

    def __init__(self) -> None:
        self._prompts: dict[int, _Prompt] = {}

    @property
    def rows(self) -> Set[int]:
        """Of prompts that are not whole."""
        return self._prompts.keys()

    def add(self, rows: Sequence[int], prompts: Sequence[Sequence[int]]) -> None:
        """Appends prompts of at least one token each."""
        self._prompts.update({row: _Prompt(prompt[:-1]) for row, prompt in zip(rows, prompts, strict=True)})

    def take(self, most: int) -> Pieces:
        """The next pieces: as wide as what is left of the first prompt, and as many as ``most`` tokens allow, padding
        included. No prompt is fed further than those before it, so none is padded beyond the capacity for them."""
        width = min(most, max(next(iter(self._prompts.values())).left, 1))
        taken = dict(islice(self._prompts.items(), most // width))
        tokens = [prompt.tokens[prompt.fed : prompt.fed + width] for prompt in taken.values()]
        first = [prompt.fed for prompt in taken.values()]
        for prompt in taken.values():
            prompt.fed += min(width, prompt.left)
        self._prompts = {row: each for row, each in self._prompts.items() if row not in taken or each.left}
        return Pieces(list(taken), tokens, first, [not prompt.left for prompt in taken.values()])

    def move(self, moved: Mapping[int, int]) -> None:
        """Says where requests stand now, by where they stood."""
        self._prompts = {moved.get(row, row): prompt for row, prompt in self._prompts.items()}

    def clear(self) -> None:
        """Forgets all prompts."""
        self._prompts.clear()
