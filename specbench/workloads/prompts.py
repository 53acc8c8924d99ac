"""Reading a prompt file, with errors that name the line."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specbench.config import LARGEST_GAMMA, LARGEST_LENGTH
from specbench.files import LONGEST_NAME, Source, is_name, is_text, shown

EMBEDDED = "embedded:"
KEY = "workload.path"
FORMAT = (
    'Each line must be a JSON object with a non-empty string "prompt", and optionally a unique "prompt_id", a '
    '"category", and a "gamma" and a "max_new_tokens" of its own.'
)
_RANGES = {"gamma": (0, LARGEST_GAMMA), "max_new_tokens": (1, LARGEST_LENGTH)}


@dataclass(frozen=True)
class Prompt:
    """A text to continue, the name it has in logs, and its line in the file.

    Attributes:
        gamma, max_new_tokens: of this text alone; None takes the run's.
        category: by which results may be grouped; None if it has none.
    """

    name: str
    text: str
    line: int
    gamma: int | None = None
    max_new_tokens: int | None = None
    category: str | None = None


def load_prompts(path: str, limit: int = 0) -> list[Prompt]:
    """The first ``limit`` prompts of a JSON-lines file (0: all); ``embedded:NAME`` is a file of this package.

    Raises:
        ConfigError: a missing, unreadable or empty file, or a malformed line (which).
    """
    embedded = path.startswith(EMBEDDED)
    place = Path(__file__).parent / path.removeprefix(EMBEDDED) if embedded else Path(os.path.expanduser(path))
    source = Source(KEY, path, "Give a UTF-8 file of JSON lines.")
    entries = Source(KEY, path, FORMAT)
    prompts: dict[str, Prompt] = {}
    for number, line in source.lines(place):
        prompt = _prompt(entries.parsed(line, f"line {number}"), number, entries)
        if prompt.name in prompts:
            raise entries.wrong(f"line {number}: prompt_id {prompt.name!r} was used before")
        prompts[prompt.name] = prompt
        if len(prompts) == limit:
            break
    if not prompts:
        raise entries.wrong("no prompts in the file")
    return list(prompts.values())


def _prompt(entry: Any, number: int, source: Source) -> Prompt:
    if why := _problem(entry):
        raise source.wrong(f"line {number} has no usable prompt ({why})")
    own = {key: _count(key, entry[key], number, source) for key in _RANGES if key in entry}
    name = _name("prompt_id", entry.get("prompt_id", f"line-{number}"), number, source)
    category = None if entry.get("category") is None else _name("category", entry["category"], number, source)
    return Prompt(name, entry["prompt"], number, **own, category=category)


def _count(key: str, given: Any, number: int, source: Source) -> int | None:
    low, high = _RANGES[key]
    if given is None or (isinstance(given, int) and not isinstance(given, bool) and low <= given <= high):
        return given
    problem = f"line {number}: {key} {shown(given)} is no whole number from {low} to {high}"
    raise source.wrong(problem, "Mend it, or leave it out to take the run's.")


def _problem(entry: Any) -> str:
    """Why a line is no prompt; empty if it is one."""
    if not isinstance(entry, dict):
        return "not a JSON object"
    if "prompt" not in entry:
        return 'no "prompt"'
    text = entry["prompt"]
    if not isinstance(text, str):
        return f"prompt is {shown(text)}, not a string"
    if not text.strip():
        return "prompt is empty"
    return "" if is_text(text) else "prompt has half of a surrogate pair, which is no character"


def _name(key: str, given: object, number: int, source: Source) -> str:
    if isinstance(given, bool) or not isinstance(given, str | int):
        why = "is neither a text nor a whole number"
    elif is_name(name := str(given)):
        return name
    else:
        why = "is empty, too long, or has characters that cannot be seen"
    raise source.wrong(
        f"line {number}: {key} {shown(given)} {why}",
        f"Use a text of 1 to {LONGEST_NAME} printable characters, or a whole number.",
    )
