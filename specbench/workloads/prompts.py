"""Reading a prompt file, with errors that name the line."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from specbench.errors import ConfigError

EMBEDDED = "embedded:"
FORMAT = 'Each line must be a JSON object with a non-empty string "prompt", and optionally a unique "prompt_id".'


@dataclass(frozen=True)
class Prompt:
    """A text to continue and the name it has in logs."""

    name: str
    text: str


def load_prompts(path: str, limit: int = 0) -> list[Prompt]:
    """The first ``limit`` prompts of a JSON-lines file (0: all); ``embedded:NAME`` is a file of this package.

    Raises:
        ConfigError: a missing, unreadable or empty file, or a malformed line (which).
    """
    key = "workload.path"
    place = (
        Path(__file__).parent / path.removeprefix(EMBEDDED) if path.startswith(EMBEDDED) else Path(path).expanduser()
    )
    try:
        lines = place.read_text(encoding="utf-8-sig").split("\n")  # splitlines would end lines at U+2028 as well
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(key, path, f"cannot be read ({error})", "Give a UTF-8 file of JSON lines.") from error
    prompts: dict[str, Prompt] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        prompt = _parse(line, number, path)
        if prompt.name in prompts:
            raise ConfigError(key, path, f"line {number}: prompt_id {prompt.name!r} was used before", FORMAT)
        prompts[prompt.name] = prompt
        if len(prompts) == limit:
            break
    if not prompts:
        raise ConfigError(key, path, "no prompts in the file", FORMAT)
    return list(prompts.values())


def _parse(line: str, number: int, path: str) -> Prompt:
    try:
        entry = json.loads(line)
    except json.JSONDecodeError as error:
        raise ConfigError("workload.path", path, f"line {number} is not JSON ({error})", FORMAT) from error
    text = entry.get("prompt") if isinstance(entry, dict) else None
    name = entry.get("prompt_id", f"line-{number}") if isinstance(entry, dict) else None
    if not isinstance(text, str) or not text.strip() or not isinstance(name, str | int):
        raise ConfigError("workload.path", path, f"line {number} has no usable prompt", FORMAT)
    return Prompt(str(name), text)
