"""What a value of JSON is, where a server or a file may hold anything in its place."""

from __future__ import annotations

import math
import sys
from typing import Any, TypeGuard

from specbench.core.machine import files

LARGEST_ID = 2**32 - 1  # of a token, as tokenizers count them


def is_text(value: Any) -> TypeGuard[str]:
    """Returns whether it is a text, which may hold halves of surrogate pairs."""
    return isinstance(value, str)


def is_name(value: Any) -> TypeGuard[str]:
    """Returns whether it is a text that can be written into tables and pages."""
    return isinstance(value, str) and files.is_text(value)


def is_flag(value: Any) -> TypeGuard[bool]:
    """Returns whether it is true or false."""
    return isinstance(value, bool)


def is_list(value: Any) -> TypeGuard[list[Any]]:
    """Returns whether it is a list."""
    return isinstance(value, list)


def is_object(value: Any) -> TypeGuard[dict[str, Any]]:
    """Returns whether it is an object."""
    return isinstance(value, dict)


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
