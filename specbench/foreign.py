"""Calls into libraries that read files (transformers, safetensors, pyarrow): what they raise is said in our words.

Broken files make these libraries raise nearly anything, a KeyError as well as a panic of Rust. A block of these holds
such calls and nothing of ours, so that no bug of ours is taken for a broken file.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from specbench.errors import ConfigError
from specbench.files import reason


@contextmanager
def foreign(key: str, value: object, problem: str, remedy: str) -> Generator[None]:
    """Turns any exception of the block into a ConfigError.

    Args:
        key, value: as they are on the command line.
        problem: what could not be done ("its tokenizer cannot be read").
        remedy: what to do.

    Raises:
        ConfigError: names the exception's type and what it says.
    """
    try:
        yield
    except BaseException as error:
        # A panic of Rust code derives from BaseException, and its class cannot be imported.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise ConfigError(key, value, f"{problem} ({type(error).__name__}: {reason(error)})", remedy) from error
