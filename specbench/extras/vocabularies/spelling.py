"""What the tokens of a tokenizer stand for, as bytes, so that the tokens of another tokenizer can be held against them.

Tokenizers write the same text in different ways: a space before a word is "Ġ" in byte-level vocabularies and "▁" in
those of sentencepiece, and a line break is "Ċ", "\\n" or "<0x0A>". As bytes they are the same. A special token stands
for no text; it is spelled by its role (the end of a text, its beginning) or, without one, by its name, between two
bytes that no UTF-8 text has. So a text with its special tokens is one string of bytes, in any vocabulary.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import Any

from transformers import PreTrainedTokenizerBase
from transformers.convert_slow_tokenizer import bytes_to_unicode

ROLES = ("eos", "bos", "unk", "pad")  # of one token with several roles the first counts
_SPECIAL = re.compile(rb"(\xff[^\xfe]*\xfe)")
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPACE = "▁"
BEFORE = 32  # bytes of the text before, with which a continuation is encoded


class Spelling:
    """A tokenizer's tokens as bytes.

    Args:
        tokenizer: of a model.
        size: ids that the model may emit; ids without a token are spelled as nothing.

    Attributes:
        tokens: the bytes of each id; empty for an id that stands for nothing.
        ids: the id of each spelling. Of several tokens that are spelled alike, it is the one that text is made of: not
            a single byte's, and the lowest.
        roles: the spelling of the token that has each role, of the roles that the vocabulary has.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, size: int):
        self._tokenizer = tokenizer
        names = {i: name for name, i in tokenizer.get_vocab().items() if i < size}
        special = self._special(tokenizer)
        spelled = _spelled_by(tokenizer)
        self.tokens = [
            _marked(special[i]) if i in special else spelled(names[i]) if i in names else b"" for i in range(size)
        ]
        self.ids: dict[bytes, int] = {}
        single = {i for i, name in names.items() if _BYTE.fullmatch(name)}
        for i in sorted(range(size), key=lambda i: (i in single, i)):
            if self.tokens[i]:
                self.ids.setdefault(self.tokens[i], i)
        self.roles = {
            role: self.tokens[i]
            for role in ROLES
            if (i := getattr(tokenizer, f"{role}_token_id")) is not None and i < size
        }

    @staticmethod
    def _special(tokenizer: PreTrainedTokenizerBase) -> dict[int, str]:
        added: Any = tokenizer.added_tokens_decoder
        special = {i: str(token.content) for i, token in added.items() if token.special}
        for role in reversed(ROLES):
            if (i := getattr(tokenizer, f"{role}_token_id")) is not None:
                special[i] = role
        return special

    def text(self, ids: Iterable[int]) -> bytes:
        """The bytes that these tokens stand for, special tokens included."""
        return b"".join(self.tokens[i] for i in ids)

    def is_special(self, token: int) -> bool:
        """Whether a token stands for no text."""
        return self.tokens[token].startswith(b"\xff") and len(self.tokens[token]) > 1

    def encode(self, text: bytes, before: bytes = b"") -> list[int]:
        """The tokens of a text, spelled exactly so, as the tokenizer would write it after the text before.

        What the tokenizer cannot write like that (part of a character, the rest of a word whose beginning stands
        already) is written by the longest tokens that fit, one after the other. Bytes that no token has are left out.
        """
        ids: list[int] = []
        for run in _SPECIAL.split(text):
            ids += self._run(run, before)
            before += run
        return ids

    def _run(self, text: bytes, before: bytes) -> list[int]:
        if text in self.ids or not text:
            return [self.ids[text]] if text else []
        if text.startswith(b"\xff"):
            return list(self._longest(text))
        before = _SPECIAL.split(before)[-1][-BEFORE:]
        joined = (before + text).decode("utf-8", errors="ignore")
        whole = list(self._tokenizer(joined, add_special_tokens=False).input_ids)
        start, left = len(whole), len(text)
        while start > 0 and len(self.tokens[whole[start - 1]]) <= left:
            start -= 1
            left -= len(self.tokens[whole[start]])
        if self.text(whole[start:]) != text[left:]:  # the tokenizer changes what it reads
            start, left = len(whole), len(text)
        return [*self._longest(text[:left]), *whole[start:]]

    def _longest(self, text: bytes) -> Iterator[int]:
        start = 0
        while start < len(text):
            ends = range(min(len(text), start + self._widest), start, -1)
            end = next((end for end in ends if text[start:end] in self.ids), None)
            if end is not None:
                yield self.ids[text[start:end]]
            start = start + 1 if end is None else end

    @cached_property
    def _widest(self) -> int:
        return max(map(len, self.ids), default=1)


def _marked(name: str) -> bytes:
    return b"\xff" + name.encode() + b"\xfe"


def _spelled_by(tokenizer: PreTrainedTokenizerBase) -> Callable[[str], bytes]:
    """How a tokenizer's tokens are read: from a token's name to its bytes."""
    backend: Any = getattr(tokenizer, "backend_tokenizer", None)
    parts = json.dumps({} if backend is None else _pipeline(backend), ensure_ascii=False)
    if '"ByteLevel"' in parts:
        byte_of = {character: byte for byte, character in bytes_to_unicode().items()}
        # A token that was added as text holds characters that stand for no byte.
        return lambda name: (
            bytes(byte_of[c] for c in name) if all(c in byte_of for c in name) else name.encode("utf-8", "replace")
        )
    spaced = _SPACE in parts or backend is None

    def spelled(name: str) -> bytes:
        if byte := _BYTE.fullmatch(name):
            return bytes([int(byte[1], 16)])
        return (name.replace(_SPACE, " ") if spaced else name).encode("utf-8", "replace")

    return spelled


def _pipeline(backend: Any) -> dict[str, Any]:
    """What a tokenizer does to text before and after its model, without the vocabulary."""
    parts = {name: getattr(backend, name) for name in ("normalizer", "pre_tokenizer", "decoder")}
    return {name: json.loads(part.__getstate__()) for name, part in parts.items() if part is not None}
