"""A target's text as it grows, in the tokens of a draft, and what the draft writes in the tokens of the target."""

from collections.abc import Sequence

from specbench.extras.vocabularies.spelling import BEFORE
from specbench.extras.vocabularies.translation import Translation


class Retokenized:
    """One text. What has been written stays, as far as the text agrees with it: nothing is read twice.

    Args:
        prompt: target tokens, at least one.

    Attributes:
        length: tokens of the text, the target's.
        ids: the text in the draft's tokens, at least one.
        known: how many of them the draft model has been fed, and need not be again; fewer than all.
    """

    def __init__(self, translation: Translation, prompt: Sequence[int]):
        self._target, self._draft = translation.target, translation.draft
        self._translation = translation
        self.length, self.ids, self.known = 0, list[int](), 0
        self._written: list[int] = []  # what the draft model was fed beyond the text
        self._end = b""  # of the text
        self.append(prompt)
        self.known = len(self.ids) - 1

    def written(self, ids: Sequence[int]) -> None:
        """Says what the draft model was fed after all of ``ids``."""
        self.known, self._written = len(self.ids), list(ids)

    def append(self, tokens: Sequence[int]) -> None:
        """What follows in the text, in the target's tokens: as the draft wrote it, as far as it did, and then as its
        tokenizer does."""
        text = self._target.text(tokens)
        for token in self._written:
            spelled = self._draft.tokens[token]
            if not spelled or not text.startswith(spelled):
                break
            self._take([token], spelled)
            text = text[len(spelled) :]
            self.known += 1
        self._written = []
        self._take(self._draft.encode(text, self._end), text)
        self.length += len(tokens)
        if not self.ids:
            self.ids = [self._translation.nothing]
        self.known = min(self.known, len(self.ids) - 1)  # the last one is fed for what follows it

    def _take(self, ids: Sequence[int], text: bytes) -> None:
        self.ids += ids
        self._end = (self._end + text)[-BEFORE:]

    def read(self, drafted: Sequence[int]) -> list[int]:
        """What the draft writes after the text, in the target's tokens. An unfinished character is left out."""
        text = self._draft.text(drafted)
        return self._target.encode(_whole_characters(text), self._end)


def _whole_characters(text: bytes) -> bytes:
    """The text without a character at its end of which bytes are missing."""
    for back in range(1, min(3, len(text)) + 1):
        byte = text[-back]
        if byte >= 0xC0:
            needs = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return text[:-back] if byte < 0xF8 and needs > back else text
        if byte < 0x80:
            break
    return text
