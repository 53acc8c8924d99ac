"""What determines a job's numbers, as a short name: the same question has the same name, wherever it is asked."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from specbench.core.machine.files import clipped
from specbench.metrics.run_row import leaves
from specbench.runs.config import OPEN_GROUPS  # any key of theirs may name a file

# These change neither what is asked nor the numbers that answer it, other than times.
APART = ("tracking", "threads", "share_machine")
FILES = ("workload.path", "pair.target", "pair.draft")  # a file or a folder, if it is not the name of something else
SAMPLES, SAMPLE = 16, 4096  # of a large file: pieces, and bytes of each


def settings_of(resolved: Mapping[str, Any], choices: Mapping[str, str]) -> dict[str, Any]:
    """The settings that determine a job's numbers; its row has them in the column ``config``.

    Neither the job's place in its sweep, nor threads, nor tracking matters.

    Args:
        choices: of the configuration groups, by which rows name what ran; returned under "choices".
    """
    unnamed = () if resolved.get("source") else ("source",)  # as in plans that are older than this key
    settings = {key: value for key, value in resolved.items() if key not in (*APART, *unnamed)}
    return {**settings, "choices": {key: value for key, value in choices.items() if key not in (*APART, "exp")}}


class Identity(NamedTuple):
    """The name of a job, what the files that it reads hold (a digest by key), and what the name is a digest of."""

    name: str
    files: dict[str, str]
    text: str


def identity(resolved: Mapping[str, Any], choices: Mapping[str, str]) -> Identity:
    """What determines a job's numbers: its settings, and the content of its files.

    Args:
        resolved, choices: see :func:`settings_of`.
    """
    settings = settings_of(resolved, choices)
    named = settings.pop("choices")
    paths = {key: _path(key, value) for key, value in leaves(settings)}
    files = {key: digest(path) for key, path in paths.items() if path is not None}
    text = json.dumps([settings, named, files], sort_keys=True, default=str)
    return Identity(_hash(text.encode()), files, text)


def differences(before: Any, now: str, files: Mapping[str, str]) -> list[str]:
    """What has changed in an identity, such as "gamma changed from 4 to 5"; choices first.

    Args:
        before: what the JSON of its text held; None, or anything else, if a sweep has none, since it is older.
        now: its text.
        files: digests of before.
    """
    after = json.loads(now)
    if not (isinstance(before, list) and len(before) == 3 and all(isinstance(part, dict) for part in before)):
        before = [*after[:2], files]
    old, new = ({**choices, **dict(leaves(settings))} for settings, choices, _ in (before, after))
    changed = [key for key in {**old, **new} if (key in old, old.get(key)) != (key in new, new.get(key))]
    read = dict.fromkeys(key for key, _ in sorted(before[2].items() ^ after[2].items()) if key not in changed)
    return [
        *(f"{key} changed from {_value(old, key)} to {_value(new, key)}" for key in changed),
        *(f"the content of {key} changed" for key in read),
    ]


def _value(values: Mapping[str, Any], key: str) -> str:
    return clipped(json.dumps(values[key], ensure_ascii=False), 80) if key in values else "nothing"


def together_part(resolved: Mapping[str, Any], choices: Mapping[str, str], files: Mapping[str, str]) -> dict[str, Any]:
    """What a plan says of a job that may share its rounds with others (protocol.together); empty for any other job.

    Args:
        files: digests of the files that it reads.
    """
    if not resolved["protocol"].get("together"):
        return {}
    settings = settings_of(resolved, choices)
    named = {key: value for key, value in settings.pop("choices").items() if key != "verifier"}
    differing = {key: settings.pop(key) for key in ("verifier", "gamma")}
    return {**differing, "rest": _hash(json.dumps([settings, named, files], sort_keys=True, default=str).encode())}


def digest(path: Path) -> str:
    """A digest of a file, or of the files in a folder and its folders, but for hidden ones, as git keeps. Of a file
    above 64 KiB pieces are read, and its size.

    Pieces tell two checkpoints of one shape apart, which differ nearly everywhere, without reading gigabytes.
    """
    try:
        if path.is_dir():
            names = sorted(file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file())
            seen = [name for name in names if not any(part.startswith(".") for part in name.split("/")[:-1])]
            return _hash(json.dumps([[name, digest(path / name)] for name in seen]).encode())
        size = path.stat().st_size
        with path.open("rb") as file:
            if size <= SAMPLES * SAMPLE:
                return _hash(file.read())
            pieces = [str(size).encode()]
            for number in range(SAMPLES):
                file.seek(number * (size - SAMPLE) // (SAMPLES - 1))
                pieces.append(file.read(SAMPLE))
            return _hash(b"".join(pieces))
    except OSError:
        return "unreadable"


def _path(key: str, value: object) -> Path | None:
    """The file or folder that a value names; None if it names none."""
    if not isinstance(value, str) or (key not in FILES and key.partition(".")[0] not in OPEN_GROUPS):
        return None
    try:
        path = Path(value).expanduser()
        return path if path.is_file() or (key in FILES and path.is_dir()) else None  # a fifo would wait
    except (OSError, RuntimeError, ValueError):
        return None


def _hash(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=8).hexdigest()
