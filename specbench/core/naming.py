"""Names arguments in the errors of the Python API, where the code behind it names keys of the command line."""

import functools
import re
from collections.abc import Callable, Mapping
from typing import ParamSpec, TypeVar

from specbench.core.errors import ConfigError, SpecbenchError

P = ParamSpec("P")
R = TypeVar("R")
_WORDS = {"true": "True", "false": "False", "null": "None"}


def names_arguments(groups: Mapping[str, str]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Renames configuration keys in the errors that a function raises.

    Args:
        groups: what stands before an argument in place of a group of keys: ``{"sampler.": "sampling."}`` makes
            ``sampling.top_p`` of ``sampler.top_p``. The group's values are written as Python writes them.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return function(*args, **kwargs)
            except SpecbenchError as error:
                error.args = (renamed(str(error), groups), *error.args[1:])
                if isinstance(error, ConfigError):
                    error.key = renamed(error.key, groups)
                raise

        return call

    return decorate


def renamed(message: str, groups: Mapping[str, str]) -> str:
    """A message with arguments in the place of keys; file names, which a slash or a letter precedes, stay."""
    for group, prefix in groups.items():

        def argument(match: re.Match[str], prefix: str = prefix) -> str:
            name, value = match.groups()
            return f"{prefix}{name}" + (f"={_WORDS[value]}" if value else "")

        keys = rf"(?<![\w./-]){re.escape(group)}([a-z_]+)(?:=({'|'.join(_WORDS)})\b)?"
        message = re.sub(keys, argument, message)
    return message
