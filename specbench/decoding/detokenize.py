"""Decodes token ids to characters as the tokens come.

A character may be spread over several tokens, and a token may hold the end of one character and the beginning of the
next. So a character is returned as soon as its last byte is there, and never changes afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

CONTEXT = 6  # tokens of the prompt that are decoded too: some tokenizers write a space only behind other tokens
_INCOMPLETE = "\N{REPLACEMENT CHARACTER}"  # decoders write it for bytes that are no complete character


@runtime_checkable
class Tokenizer(Protocol):
    """The part of a tokenizer of transformers that is used here."""

    def decode(self, token_ids: list[int], **settings: bool) -> str | list[str]:
        """Returns the text of some tokens."""
        ...


class TextStream:
    """The text of a continuation, a few tokens at a time.

    The window holds the tokens that are decoded each time: those since all characters were complete, and those
    returned just before.

    Args:
        tokenizer: of the pair.
        prompt: token ids before the continuation; their text is not returned.
        skip_special_tokens: whether tokens such as the end of text are left out.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int], skip_special_tokens: bool):
        self._tokenizer, self._skips = tokenizer, skip_special_tokens
        self._window = list(prompt[-CONTEXT:])
        self._before = len(self._window)  # tokens of the window whose text was returned
        self._returned = len(self._whole(self._decoded(self._window)))

    def feed(self, token_ids: Sequence[int]) -> str:
        """Takes the next tokens, and returns the characters that they complete."""
        self._window += token_ids
        text = self._decoded(self._window)
        whole = self._whole(text)
        new = whole[self._returned :]
        self._returned = max(self._returned, len(whole))
        if new and len(whole) == len(text):  # nothing is pending: the window can begin later
            self._window = self._window[self._before :]
            self._before = len(self._window)
            self._returned = len(self._decoded(self._window))
        return new

    def rest(self) -> str:
        """Returns the rest at the end of the text: bytes that are no complete character."""
        return self._decoded(self._window)[self._returned :]

    def _decoded(self, token_ids: list[int]) -> str:
        settings = {"skip_special_tokens": self._skips, "clean_up_tokenization_spaces": False}
        return str(self._tokenizer.decode(token_ids, **settings)) if token_ids else ""

    @staticmethod
    def _whole(text: str) -> str:
        return text.rstrip(_INCOMPLETE)
