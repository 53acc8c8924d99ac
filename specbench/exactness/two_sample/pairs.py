"""Texts as arrays of numbers: pairs of a plain and a speculative text of one prompt, and what precedes each token."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

PLAIN, SPECULATIVE = 0, 1  # the two texts of a pair
END, BEHIND = -1, -2  # what stands behind the last token of a text, and behind that
KNOWN = 8  # texts that must have begun likewise before the next token's probability is estimated
Words = Sequence[int] | Sequence[str]


@dataclass(frozen=True, eq=False)
class TextPairs:
    """R pairs of texts in the order in which they were sampled.

    Attributes:
        prompts: int [R], the number of each pair's prompt.
        tokens: int [R, 2, L], numbers of tokens; END stands once behind a text that ended before L tokens.
        classes: int [R, 2, L], the class of each token by a checkpoint's probability (:mod:`.bets`), 0 where there is
            none; None without a checkpoint.
        ratios: int [R, 2, L], likewise the number of an interval of the draft's probability over the target's, from 1.
        length: L, the most tokens of a text.
    """

    prompts: np.ndarray
    tokens: np.ndarray
    classes: np.ndarray | None = None
    ratios: np.ndarray | None = None

    @property
    def length(self) -> int:
        return self.tokens.shape[2]

    @cached_property
    def beginnings(self) -> np.ndarray:
        """int [R, 2, L]: the same number for tokens that the same prompt and the same tokens precede."""
        numbers = np.empty(self.tokens.shape, dtype=np.int64)
        number = np.broadcast_to(self.prompts[:, None], self.tokens.shape[:2]).astype(np.int64)
        for place in range(self.length):
            numbers[:, :, place] = number + 1 + (numbers[:, :, :place].max(initial=0))
            number = numbered(numbers[:, :, place], self.tokens[:, :, place])
        return numbers


def numbered(*keys: np.ndarray) -> np.ndarray:
    """A number from 0 for each combination of integers at the same place. Ranges of keys multiply to below 2^63."""
    result = np.zeros(keys[0].shape, dtype=np.int64)
    for key in keys:
        low, high = (int(key.min()), int(key.max())) if key.size else (0, 0)
        result = result * (high - low + 1) + (key - low)
    _, numbers = np.unique(result, return_inverse=True)
    return numbers.reshape(result.shape)


def text_pairs(prompts: Sequence[int], plain: Sequence[Words], speculative: Sequence[Words], length: int) -> TextPairs:
    """Pairs of texts given as token ids, or as words of engines that return none.

    Args:
        prompts: the number of each pair's prompt.
        length: the most tokens of a text; what is behind them is left out.
    """
    names: dict[int | str, int] = {}
    tokens = np.full((len(prompts), 2, length), BEHIND, dtype=np.int64)
    for row, texts in enumerate(zip(plain, speculative, strict=True)):
        for side, text in enumerate(texts):
            kept = [names.setdefault(word, len(names)) for word in text[:length]]
            tokens[row, side, : len(kept)] = kept
            if len(kept) < length:
                tokens[row, side, len(kept)] = END
    return TextPairs(np.asarray(prompts, dtype=np.int64), tokens)


def words_of(text: str) -> list[str]:
    """The words and marks of a text, each with the space before it: the tokens of an engine that returns none."""
    return re.findall(r"\s*(?:\w+|[^\w\s])|\s+", text)
