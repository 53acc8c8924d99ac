"""Files with something wrong: how to make each, and the words that a message about it must have."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from specbench.core.errors import ConfigError
from specbench.replay.trace import trace_schema
from tests.helpers.markov_pair import IDENTITY

DEEP = '{"prompt":' + "[" * 100_000
DIGITS = "9" * 5000
HALF = "\\ud800"  # as JSON writes half of a surrogate pair


Make = Callable[[Path], Any]
Cases = dict[str, tuple[Make, tuple[str, ...]]]  # by reason


def assert_refused(read: Callable[[Path], Any], key: str, path: Path, says: tuple[str, ...]) -> None:
    """Holds a message to what each of them is: it begins with key and path, and is one line that can be printed."""
    with pytest.raises(ConfigError) as caught:
        read(path)
    message = str(caught.value)
    assert message.startswith(f"{key}={path}: ")
    for words in says:
        assert words in message
    assert len(message) < 1000
    assert "\n" not in message
    message.encode()


def lines(*written: str | bytes | dict[str, Any]) -> Make:
    """A file of these lines; objects become JSON."""

    def encoded(line: str | bytes | dict[str, Any]) -> bytes:
        if isinstance(line, bytes):
            return line
        return (line if isinstance(line, str) else json.dumps(line)).encode()

    return lambda path: path.write_bytes(b"".join(encoded(line) + b"\n" for line in written))


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2**29)


# What is no file of lines at all, for prompts and traces alike.
NO_FILE: Cases = {
    "missing": (lambda path: None, ("no such file",)),
    "folder": (os.mkdir, ("a folder",)),
    "pipe": (os.mkfifo, ("a named pipe, not a file",)),
    "device": (lambda path: path.symlink_to("/dev/zero"), ("a device, not a file",)),
    "loop": (lambda path: path.symlink_to(path.name), ("too many levels of symbolic links",)),
}
GOOD = {"prompt": "a"}


def _id(prompt_id: Any) -> Make:
    return lines(GOOD, GOOD | {"prompt_id": prompt_id})


def _own(key: str, value: Any) -> Make:
    return lines(GOOD, GOOD | {key: value})


_PRINTABLE = "Use a text of 1 to 200 printable characters, or a whole number"
PROMPTS: Cases = {
    **NO_FILE,
    "empty": (lines(), ("no prompts in the file",)),
    "zeros and no line": (sparse, ("line 1 is longer than 256 MiB",)),
    "UTF-16": (
        lambda path: path.write_text('{"prompt": "a"}', encoding="utf-16"),
        ("line 1 is not UTF-8 (byte 0xff at 1)",),
    ),
    "latin-1": (lines(GOOD, b'{"prompt": "\xe9"}'), ("line 2 is not UTF-8 (byte 0xe9 at 13)",)),
    "cut off": (lines(GOOD, '{"prompt": '), ("line 2 is not JSON (Expecting value at character 12)",)),
    "deep": (lines(GOOD, DEEP), ("line 2 is not JSON (nested too deeply)",)),
    "digits": (lines(GOOD, f'{{"prompt": {DIGITS}}}'), ("line 2 is not JSON (Exceeds the limit",)),
    "list": (lines(GOOD, "[]"), ("line 2 has no usable prompt (not a JSON object)",)),
    "no prompt": (lines(GOOD, {"words": "b"}), ('line 2 has no usable prompt (no "prompt")',)),
    "number": (lines(GOOD, {"prompt": 7}), ("line 2 has no usable prompt (prompt is 7, not a string)",)),
    "deep list": (
        lines(GOOD, f'{{"prompt": {"[" * 500}{"]" * 500}}}'),
        ("line 2 has no usable prompt (prompt is [[[",),
    ),
    "blank": (lines(GOOD, {"prompt": " \n"}), ("line 2 has no usable prompt (prompt is empty)",)),
    "half a character": (lines(GOOD, f'{{"prompt": "x{HALF}"}}'), ("line 2 has no usable prompt", "surrogate pair")),
    "name half a character": (
        lines(GOOD, f'{{"prompt": "a", "prompt_id": "{HALF}"}}'),
        ("line 2: prompt_id '\\ud800' is empty, too",),
    ),
    "name true": (_id(True), ("line 2: prompt_id True is neither a text nor a whole number", _PRINTABLE)),
    "name a fraction": (_id(1.5), ("line 2: prompt_id 1.5 is neither a text nor a whole number",)),
    "name null": (_id(None), ("line 2: prompt_id None is neither",)),
    "name empty": (_id(""), ("line 2: prompt_id '' is empty",)),
    "name blank": (_id("  "), ("line 2: prompt_id '  ' is empty",)),
    "name long": (_id("x" * 201), ("line 2: prompt_id 'xxx", "is empty, too long")),
    "name with a zero": (_id("a\0b"), ("line 2: prompt_id 'a\\x00b' is empty, too long, or has characters that",)),
    "gamma a text": (_own("gamma", "4"), ("line 2: gamma '4' is no whole number from 0 to 64",)),
    "gamma true": (_own("gamma", True), ("line 2: gamma True is no whole number", "to take the run's")),
    "gamma large": (_own("gamma", 65), ("line 2: gamma 65 is no whole number from 0 to 64",)),
    "length zero": (_own("max_new_tokens", 0), ("line 2: max_new_tokens 0 is no whole number from 1 to 1000000",)),
    "length a fraction": (_own("max_new_tokens", 2.0), ("line 2: max_new_tokens 2.0 is no whole number",)),
    "name twice": (
        lines(GOOD | {"prompt_id": 1}, GOOD | {"prompt_id": "1"}),
        ("line 2: prompt_id '1' was used before",),
    ),
}

TEXT = {"prompt_id": "a", "token_ids": [5], "target_logprobs": [-1.0], "draft_logprobs": [-2.0]}


def table(**columns: Any) -> pa.Table:
    """A trace of two texts, with some columns replaced; ... leaves one out."""
    good = {
        "prompt": pa.array(["a", "a", "b"]),
        "sample": pa.array([0, 0, 0]),
        "position": pa.array([0, 1, 0]),
        "token": pa.array([5, 6, 7]),
        "log_p": pa.array([-1.0, -1.0, -1.0], pa.float32()),
        "log_q": pa.array([-1.0, -1.0, -1.0], pa.float32()),
    }
    kept = {name: column for name, column in {**good, **columns}.items() if column is not ...}
    return pa.table(kept).replace_schema_metadata(trace_schema(IDENTITY).metadata)
