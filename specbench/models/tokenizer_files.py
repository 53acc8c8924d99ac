"""Refuses a tokenizer's files that would end the process, or fill its memory, in the library that reads them.

tokenizers is written in Rust. It raises an exception for most of what is wrong in a file. What is checked here it does
not survive: it asks for more memory than there is, or fails once more while it cleans up after a failure.
"""

import base64
import binascii
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from specbench.core.machine.files import LONGEST_LINE, Origin, shown

MOST_IDS = 10_000_000  # beyond any vocabulary; the library may list every unused id below the largest
MOST_GROWTH = 10_000  # bytes of text from one; real tokenizers make some dozens
_BUNDLE = "tokenizer.json"
_READ_WHOLE = (".json", ".jinja", ".txt", ".model", ".tiktoken", ".spm")


def check_tokenizer_files(folder: Path, source: Origin) -> None:
    """Checks the tokenizer's files of a checked folder; leaves files that are no JSON to the library's own message.

    Raises:
        ConfigError: a file above LONGEST_LINE bytes; an id from MOST_IDS on; a merge that cannot be cut after the
            prefix of continued words; a table of a normaliser that is shorter than it says; parts that together make
            more than MOST_GROWTH bytes of one.
    """
    for path in sorted(folder.iterdir()):
        if path.suffix in _READ_WHOLE and path.is_file() and (size := path.stat().st_size) > LONGEST_LINE:
            limit = f"more than the {LONGEST_LINE >> 20} MiB allowed"
            raise source.wrong(f"{path.name} has {size / 2**20:,.0f} MiB, {limit}")
    _check_ids("vocab.json", _object(folder / "vocab.json"), source)
    bundle = _object(folder / _BUNDLE)
    model = bundle.get("model")
    if isinstance(model, dict):
        _check_ids(_BUNDLE, model.get("vocab"), source)
        _check_merges(model, source)
    _check_parts(bundle, source)


def _object(path: Path) -> dict[str, Any]:
    """Returns the object that a JSON file holds; an empty one if there is none."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _check_ids(name: str, vocabulary: object, source: Origin) -> None:
    for token, number in vocabulary.items() if isinstance(vocabulary, dict) else ():
        if isinstance(number, int) and number >= MOST_IDS:
            problem = f"{name} gives {shown(token)} the id {shown(number)}, more than any vocabulary has"
            raise source.wrong(problem, _remedy(name))


def _check_merges(model: dict[str, Any], source: Origin) -> None:
    """Raises ConfigError if the library would cut the second part of a merge inside of a character or behind its end.

    It cuts off as many bytes as continuing_subword_prefix has characters.
    """
    prefix, merges = model.get("continuing_subword_prefix"), model.get("merges")
    if not isinstance(prefix, str) or not prefix or not isinstance(merges, list):
        return
    for merge in merges:
        parts = merge.split(" ") if isinstance(merge, str) else merge
        if not isinstance(parts, list) or len(parts) != 2 or not isinstance(parts[1], str):
            continue
        second = parts[1].encode(errors="replace")
        rest = second[len(prefix) :]
        if len(second) < len(prefix) or (rest and rest[0] & 0xC0 == 0x80):
            problem = f"{_BUNDLE} merges {shown(merge)}, which lacks continuing_subword_prefix {shown(prefix)}"
            raise source.wrong(problem, _remedy(_BUNDLE))


def _check_parts(bundle: dict[str, Any], source: Origin) -> None:
    """Raises ConfigError if a table is shorter than it says, or a chain of parts multiplies text without bound."""
    for place in ("normalizer", "pre_tokenizer", "decoder"):
        growth = 1
        for part in _flattened(bundle.get(place)):
            growth *= _growth(part, source)
            if growth > MOST_GROWTH:
                problem = f"{_BUNDLE} has a {place} that makes up to {growth:,} bytes of one"
                raise source.wrong(f"{problem}, more than the {MOST_GROWTH:,} allowed", _remedy(_BUNDLE))


def _flattened(part: object) -> Iterator[dict[str, Any]]:
    """Yields the parts of a sequence, of sequences in it too; a part alone yields itself."""
    waiting = [part]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            yield part
            inner = (part.get(name) for name in ("normalizers", "pretokenizers", "decoders"))
            waiting += [child for parts in inner if isinstance(parts, list) for child in parts]


def _growth(part: dict[str, Any], source: Origin) -> int:
    """Returns the most bytes that a part writes for each byte of a text; 1 for what does not grow if it is repeated."""
    match part:
        case {"type": "Replace", "pattern": {"String": str(replaced)}, "content": str(content)} if replaced:
            return -(-_bytes(content) // _bytes(replaced)) or 1
        case {"type": "Replace", "content": str(content)} | {"type": "Prepend", "prepend": str(content)}:
            return 1 + _bytes(content)  # a pattern may match between any two letters
        case {"type": "ByteLevel"} | {"type": "BPEDecoder", "suffix": ""} | {"type": "CTC", "word_delimiter_token": ""}:
            return 2
        case {"precompiled_charsmap": str(table)}:
            return _longest_entry(table, source) or 1
    return 1


def _bytes(text: str) -> int:
    return len(text.encode(errors="replace"))


def _longest_entry(table: str, source: Origin) -> int:
    """Returns the bytes of the longest text of SentencePiece's table; 0 if the library refuses the table.

    The first four bytes say how long the index is that stands before the texts.
    """
    try:
        content = base64.b64decode(table)
    except (binascii.Error, ValueError):
        return 0
    end = 4 + int.from_bytes(content[:4], "little")
    if len(content) >= 4 and end > len(content):
        raise source.wrong(f"{_BUNDLE} is damaged: its precompiled_charsmap is cut off", _remedy(_BUNDLE))
    return max(map(len, content[end:].split(b"\0")))


def _remedy(name: str) -> str:
    return f"Take {name} from the model's own release."
