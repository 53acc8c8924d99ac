"""Files that a user names, as text and JSON: what cannot be one is refused in words, and nothing is waited for.

A named pipe would be waited for, a device such as /dev/zero has no end: only regular files are opened.
"""

import json
import os
import reprlib
import stat
from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specbench.core.errors import ConfigError, ModelError

LONGEST_LINE = 2**28  # bytes; far above any prompt or scored text, so that a file of zeros ends as well
LONGEST_NAME = 200  # characters
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_LFS = b"version https://git-lfs"
_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISSOCK, "a socket"),
)
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 60


def problem_of(path: str | Path) -> str | None:
    """Why a path cannot be read as a file, in words; None for a file that can be."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return "no such file"
    except (OSError, ValueError) as error:  # a loop of links, a name too long; a zero byte in a name
        return reason(error)
    for is_kind, words in _KINDS:
        if is_kind(mode):
            return f"{words}, not a file"
    return None if os.access(path, os.R_OK) else "permission denied"


def reason(error: BaseException) -> str:
    """What an exception says, in one line without the path that a message names anyway."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror[0].lower() + error.strerror[1:]
    return clipped(" ".join(str(error).split()) or type(error).__name__, 300)


def clipped(text: str, length: int = 200) -> str:
    """A text of at most ``length`` characters, cut at the end."""
    return text if len(text) <= length else f"{text[: length - 3]}..."


def shown(value: object) -> str:
    """A value for a message, however long or deep it is."""
    return _SHORT.repr(value)


def plain(name: str) -> str:
    """A name out of a file for a message: as it is, if it can be printed on one line and is not too long."""
    return clipped(name if name.isprintable() else ascii(name)[1:-1])


def is_text(value: str) -> bool:
    """Whether a string can be written: half of a surrogate pair, which JSON's \\ud800 makes, is no character."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_name(value: str) -> bool:
    """Whether a text can name a prompt in tables and messages: not too long, and all of it can be seen."""
    return bool(value.strip()) and len(value) <= LONGEST_NAME and value.isprintable()


class _TwoValues(Exception):
    """A key of a JSON object with two values, of which a parser keeps the last."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        for key, value in pairs:
            if value != mapping[key]:
                raise _TwoValues(f"has two values of {shown(key)}: {shown(value)} and {shown(mapping[key])}")
    return mapping


@dataclass(frozen=True)
class Origin:
    """A configuration value that names a file, and what to do where the file is no good.

    Args:
        key, value: as they are on the command line.
    """

    key: str
    value: object
    remedy: str

    def wrong(self, problem: str, remedy: str | None = None) -> ConfigError:
        """The error to raise."""
        return ConfigError(self.key, self.value, problem, remedy or self.remedy)

    def model_error(self, problem: str, remedy: str) -> ModelError:
        """The error to raise for a model that cannot be used."""
        return ModelError(f"{self.key}={self.value}: {problem}. {remedy}")

    def library_errors(self, problem: str, remedy: str | None = None) -> AbstractContextManager[None]:
        """Turns any exception of a block into a ConfigError; see :func:`wrap_library_errors`."""
        return wrap_library_errors(self.key, self.value, problem, remedy or self.remedy)

    def check(self, path: str | Path, name: str = "") -> None:
        """Raises ConfigError for what is no readable regular file; ``name`` says which, where it is not the value."""
        if problem := problem_of(path):
            raise self.wrong(f"{name} cannot be read ({problem})".lstrip())

    def lines(self, path: str | Path) -> Iterator[tuple[int, str]]:
        r"""The lines of a UTF-8 file that are not blank, numbered from 1. Only "\n" ends a line.

        Raises:
            ConfigError: no readable regular file, or a line that is not UTF-8 or has no end; the line is named.
        """
        self.check(path)
        try:
            with open(path, "rb") as file:
                number = 0
                while line := file.readline(LONGEST_LINE):
                    number += 1
                    if len(line) == LONGEST_LINE:
                        raise self.wrong(f"line {number} is longer than {LONGEST_LINE >> 20} MiB")
                    text = self._decoded(line if number > 1 else line.removeprefix(_BYTE_ORDER_MARK), number)
                    if text.strip():
                        yield number, text.rstrip("\r\n")
        except OSError as error:
            raise self.wrong(f"cannot be read ({reason(error)})") from error

    def _decoded(self, line: bytes, number: int) -> str:
        try:
            return line.decode()
        except UnicodeDecodeError as error:
            problem = f"line {number} is not UTF-8 (byte 0x{line[error.start]:02x} at {error.start + 1})"
            raise self.wrong(problem) from error

    def parsed(self, text: str | bytes, name: str) -> Any:
        """What JSON text holds; ``name`` says where it stands ("line 3", "config.json").

        Raises:
            ConfigError: it is no JSON, nested too deeply, gives a key two values, or has numbers of thousands
                of digits.
        """
        try:
            return json.loads(text, object_pairs_hook=_object)
        except json.JSONDecodeError as error:
            line = "" if error.lineno == 1 else f"line {error.lineno}, "
            problem, cause = f"{error.msg} at {line}character {error.colno}", error
        except RecursionError as error:
            problem, cause = "nested too deeply", error
        except _TwoValues as error:
            raise self.wrong(f"{name} {error}") from error
        except ValueError as error:  # not UTF-8, or too many digits
            problem, cause = reason(error), error
        raise self.wrong(f"{name} is not JSON ({problem})") from cause

    def json_object(self, path: Path) -> dict[str, Any]:
        """The object that a small JSON file holds.

        Raises:
            ConfigError: no readable regular file, one above LONGEST_LINE, or no JSON object; the file is named.
        """
        self.check(path, path.name)
        try:
            with path.open("rb") as file:
                content = file.read(LONGEST_LINE + 1)
        except OSError as error:
            raise self.wrong(f"{path.name} cannot be read ({reason(error)})") from error
        if len(content) > LONGEST_LINE:
            raise self.wrong(f"{path.name} is longer than {LONGEST_LINE >> 20} MiB")
        self.check_fetched(content, path.name)
        mapping = self.parsed(content, path.name)
        if not isinstance(mapping, dict):
            raise self.wrong(f"{path.name} is not a JSON object")
        return mapping

    def check_fetched(self, beginning: bytes, name: str) -> None:
        """Raises ConfigError for what Git leaves in the place of a large file that was not fetched."""
        if beginning.startswith(_LFS):
            raise self.wrong(f"{name} is a pointer of Git LFS, not the file itself", "Fetch the files: git lfs pull.")


def is_library_error(error: BaseException) -> bool:
    """Whether a library failed, in Python or in Rust, rather than an interrupt or an exit."""
    # A panic of Rust code derives from BaseException, and its class cannot be imported.
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


@contextmanager
def wrap_library_errors(key: str, value: object, problem: str, remedy: str) -> Generator[None]:
    """Turns any exception of the block into a ConfigError, in our words.

    transformers, safetensors and pyarrow raise nearly anything for a broken file, a KeyError as well as a panic of
    Rust. The block holds such calls and nothing of ours, so that no bug of ours is taken for a broken file.

    Args:
        key, value: as they are on the command line.
        problem: what could not be done ("its tokenizer cannot be read").

    Raises:
        ConfigError: names the exception's type and what it says.
    """
    try:
        yield
    except BaseException as error:
        if not is_library_error(error):
            raise
        raise ConfigError(key, value, f"{problem} ({type(error).__name__}: {reason(error)})", remedy) from error
