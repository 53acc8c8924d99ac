"""Prompts that are fed in pieces, so that running requests never wait for a whole one.

Chunked prefill of serving engines (Agrawal et al., "Taming throughput-latency tradeoff in LLM inference with
Sarathi-Serve", arXiv 2403.02310), with one difference: there a piece is part of a step's forward pass. Here it is a
pass of its own between two steps, so that steps keep their shapes and their CUDA graphs.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import islice


@dataclass
class _Prompt:
    """The tokens to feed of a prompt: all but its last token, which the first step feeds."""

    tokens: Sequence[int]
    fed: int = 0

    @property
    def left(self) -> int:
        return len(self.tokens) - self.fed


@dataclass(frozen=True)
class Pieces:
    """The pieces that are fed in one pass, one for each row.

    Attributes:
        tokens: of each piece; none for a prompt of a single token.
        first: the number of tokens of each prompt that were fed before.
        last: whether each prompt is complete afterwards.
    """

    rows: list[int]
    tokens: list[Sequence[int]]
    first: list[int]
    last: list[bool]

    @property
    def fed(self) -> list[int]:
        """The number of tokens of each prompt that are fed afterwards."""
        return [first + len(tokens) for first, tokens in zip(self.first, self.tokens, strict=True)]


class PromptQueue:
    """Prompts by the rows of their requests, fed in the order in which they came."""

    def __init__(self) -> None:
        self._prompts: dict[int, _Prompt] = {}

    @property
    def rows(self) -> Set[int]:
        """The rows of prompts that are not complete."""
        return self._prompts.keys()

    def add(self, rows: Sequence[int], prompts: Sequence[Sequence[int]]) -> None:
        """Appends prompts of at least one token each."""
        self._prompts.update({row: _Prompt(prompt[:-1]) for row, prompt in zip(rows, prompts, strict=True)})

    def take(self, most: int) -> Pieces:
        """Returns the next pieces: as wide as the rest of the first prompt, and as many as ``most`` tokens allow.

        Padding counts. No prompt is fed further than those before it, so none is padded beyond their capacity.
        """
        width = min(most, max(next(iter(self._prompts.values())).left, 1))
        taken = dict(islice(self._prompts.items(), most // width))
        tokens = [prompt.tokens[prompt.fed : prompt.fed + width] for prompt in taken.values()]
        first = [prompt.fed for prompt in taken.values()]
        for prompt in taken.values():
            prompt.fed += min(width, prompt.left)
        self._prompts = {row: prompt for row, prompt in self._prompts.items() if row not in taken or prompt.left}
        return Pieces(list(taken), tokens, first, [not prompt.left for prompt in taken.values()])

    def move(self, moved: Mapping[int, int]) -> None:
        """Changes the rows of requests; ``moved`` has the new row by the old one."""
        self._prompts = {moved.get(row, row): prompt for row, prompt in self._prompts.items()}

    def clear(self) -> None:
        self._prompts.clear()
