"""Token ids to characters, as the tokens come.

A character may be spread over several tokens, and a token may hold the end of one character and the beginning of the
next. So characters are told as soon as their last byte is there, and what is told never changes afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

CONTEXT = 6  # tokens of the prompt that are decoded along: with some tokenizers a space depends on what precedes it
_INCOMPLETE = "\N{REPLACEMENT CHARACTER}"  # what decoders write for bytes that are no character, or none yet


@runtime_checkable
class Tokenizer(Protocol):
    """What of a tokenizer of transformers is needed here."""

    def decode(self, token_ids: list[int], **settings: bool) -> str | list[str]:
        """The text of some tokens."""
        ...


class TextStream:
    """The text of a continuation, a few tokens at a time.

    The window is what is decoded anew each time: since the last place where all characters were whole, and the tokens
    told just before it.

    Args:
        tokenizer: of the pair.
        prompt: token ids that the continuation follows; their text is not told.
        skip_special_tokens: whether tokens such as the end of text are left out.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int], skip_special_tokens: bool):
        self._tokenizer, self._skips = tokenizer, skip_special_tokens
        self._window = list(prompt[-CONTEXT:])
        self._before = len(self._window)  # tokens of the window that were told before
        self._told = len(self._whole(self._decoded(self._window)))

    def feed(self, token_ids: Sequence[int]) -> str:
        """Takes the next tokens, and returns the characters that are whole with them."""
        self._window += token_ids
        text = self._decoded(self._window)
        whole = self._whole(text)
        new = whole[self._told :]
        self._told = max(self._told, len(whole))
        if new and len(whole) == len(text):  # nothing is pending: the window can begin later
            self._window = self._window[self._before :]
            self._before = len(self._window)
            self._told = len(self._decoded(self._window))
        return new

    def rest(self) -> str:
        """What is left at the end of the text: bytes that have become no character."""
        return self._decoded(self._window)[self._told :]

    def _decoded(self, token_ids: list[int]) -> str:
        settings = {"skip_special_tokens": self._skips, "clean_up_tokenization_spaces": False}
        return str(self._tokenizer.decode(token_ids, **settings)) if token_ids else ""

    @staticmethod
    def _whole(text: str) -> str:
        return text.rstrip(_INCOMPLETE)
