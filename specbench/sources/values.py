"""What a value of JSON is, where a server or a file may hold anything in its place."""

import math
import sys
from collections.abc import Callable
from typing import Any, TypeGuard

from specbench.core.machine import files

LARGEST_ID = 2**32 - 1  # of a token, as tokenizers count them


Kind = type | Callable[[Any], bool]  # a type, or one of the checks below


def is_a(kind: Kind, value: Any) -> bool:
    """Returns whether it is of a type, or passes a check. A str may hold halves of surrogate pairs."""
    return isinstance(value, kind) if isinstance(kind, type) else kind(value)


def is_name(value: Any) -> TypeGuard[str]:
    """Returns whether it is a text that can be written into tables and pages."""
    return isinstance(value, str) and files.is_text(value)


def is_number(value: Any) -> TypeGuard[float]:
    """Returns whether it is a number that a float can hold; NaN and infinities, which Python reads too, are none."""
    return type(value) in (int, float) and -sys.float_info.max <= value <= sys.float_info.max


def is_count(value: Any) -> TypeGuard[int]:
    """Returns whether it is a whole number from 0 that a float can hold."""
    return type(value) is int and 0 <= value <= sys.float_info.max


def is_logprob(value: Any) -> TypeGuard[float]:
    """Returns whether it is a log-probability; that of an impossible token is -Infinity."""
    return is_number(value) or (isinstance(value, float) and value == -math.inf)


def is_logprobs(value: Any) -> TypeGuard[list[float]]:
    """Returns whether it is a list of log-probabilities."""
    return isinstance(value, list) and all(map(is_logprob, value))


def is_token_ids(value: Any) -> TypeGuard[list[int]]:
    """Returns whether it is a list of token ids."""
    return isinstance(value, list) and all(type(token) is int and 0 <= token <= LARGEST_ID for token in value)


def is_counters(value: Any) -> TypeGuard[dict[str, float]]:
    """Returns whether it is an object of numbers from 0."""
    return isinstance(value, dict) and all(is_number(number) and number >= 0 for number in value.values())
