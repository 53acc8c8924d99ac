"""Decodes token ids to characters as the tokens come.

A character may be spread over several tokens, and a token may hold the end of one character and the beginning of the
next. So a character is returned as soon as its last byte is there, and never changes afterwards.
"""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from specbench.core.errors import ModelError
from specbench.core.machine.files import is_library_error, reason, shown

CONTEXT = 6  # tokens of the prompt that are decoded too: some tokenizers write a space only behind other tokens
_INCOMPLETE = "\N{REPLACEMENT CHARACTER}"  # decoders write it for bytes that are no complete character


@runtime_checkable
class Tokenizer(Protocol):
    """The part of a tokenizer of transformers that is used here."""

    def decode(self, token_ids: list[int], **settings: bool) -> str | list[str]:
        """Returns the text of some tokens."""
        ...


def text_of(tokenizer: Tokenizer, token_ids: Sequence[int], skip_special_tokens: bool) -> str:
    """Returns the text of some tokens, with the spaces that the tokenizer writes.

    Raises:
        ModelError: the tokenizer fails on these tokens.
    """
    try:
        text = tokenizer.decode(
            list(token_ids), skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False
        )
    except BaseException as error:  # tokenizers raises Exception itself, and panics
        if not is_library_error(error):
            raise
        problem = f"its tokenizer has no text for the ids {shown(list(token_ids))}"
        remedy = "Take tokenizer.json from the model's own release."
        raise ModelError(f"pair.target: {problem} ({type(error).__name__}: {reason(error)}). {remedy}") from error
    return str(text)


class TextStream:
    """The text of a continuation, a few tokens at a time.

    The window holds the tokens that are decoded each time: those since all characters were complete, and those
    returned just before.

    Args:
        prompt: token ids before the continuation; their text is not returned.
        skip_special_tokens: whether tokens such as the end of text are left out.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int], skip_special_tokens: bool):
        self._tokenizer, self._skips = tokenizer, skip_special_tokens
        self._window = list(prompt[-CONTEXT:])
        self._before = len(self._window)  # tokens of the window whose text was returned
        self._returned = self._whole(self._decoded(self._window))

    def feed(self, token_ids: Sequence[int]) -> str:
        """Takes the next tokens, and returns the characters that they complete."""
        self._window += token_ids
        text = self._pending()
        new = self._whole(text)
        self._returned += new
        if new and len(new) == len(text):  # nothing is pending: the window can begin later
            self._window = self._window[self._before :]
            self._before = len(self._window)
            self._returned = self._decoded(self._window)
        return new

    def rest(self) -> str:
        """Returns the rest at the end of the text: bytes that are no complete character."""
        return self._pending()

    def _pending(self) -> str:
        """The text of the window after what was returned."""
        text = self._decoded(self._window)
        if not text.startswith(self._returned):  # decoders of bytes write a mark for each byte of a broken run
            self._window, self._before, self._returned = self._window[self._before :], 0, ""
            text = self._decoded(self._window)
        return text[len(self._returned) :]

    def _decoded(self, token_ids: list[int]) -> str:
        return text_of(self._tokenizer, token_ids, self._skips) if token_ids else ""

    @staticmethod
    def _whole(text: str) -> str:
        return text.rstrip(_INCOMPLETE)
