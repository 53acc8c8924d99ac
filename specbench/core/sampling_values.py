"""Checks of sampling parameters. Each takes a name and a value, and returns the value in its one form."""

import json
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeGuard

from specbench.core.checks import check_number, is_whole, plain_number
from specbench.core.errors import ConfigError

LARGEST_VOCABULARY = 2**31 - 1
LARGEST_BIAS = 100.0  # of logit_bias, as OpenAI's interface has it
STRUCTURES = ("json", "regex", "grammar", "choice")

# Takes a parameter's name and value; returns the value in its one form, or raises ConfigError.
Check = Callable[[str, Any], Any]


def number(interval: str, remedy: str, least: float = 0.0) -> Check:
    """A check for finite numbers; ``least`` is the smallest but for 0, with which logits do not overflow."""

    def check(name: str, value: object) -> float | int:
        value = check_number(name, value, interval, remedy)
        if 0 < value < least:
            raise ConfigError(name, value, "so small that logits overflow", remedy)
        return value

    return check


def whole(low: int, high: int, optional: bool = True) -> Check:
    """A check for whole numbers from ``low`` to ``high``, or None if it is optional."""

    def check(name: str, value: object) -> int | None:
        value = plain_number(value)
        if value is None and optional:
            return None
        if not is_whole(value) or not low <= value <= high:
            raise ConfigError(name, value, f"no whole number from {low} to {high}", "Change it, or leave it out.")
        return value

    return check


def count_of_tokens(name: str, value: object) -> int:
    """top_k: a whole number; 0 is off, and so is -1, which becomes 0. Raises ConfigError."""
    value = number("[-1, inf)", "Use a whole number; 0 or -1 is off.")(name, value)
    if value != int(value) or value > LARGEST_VOCABULARY:
        raise ConfigError(name, value, "not a count of tokens", "Use a whole number; 0 or -1 is off.")
    return max(0, int(value))


def one_of(*choices: str) -> Check:
    """A check for one of several words."""

    def check(name: str, value: object) -> object:
        if value not in choices:
            raise ConfigError(name, value, "not known", f"Use {' or '.join(choices)}.")
        return value

    return check


def stops_of(name: str, value: object) -> tuple[str, ...]:
    """One text, or a list of them. Raises ConfigError."""
    return texts_of(name, (value,) if isinstance(value, str) else value)


def some_ids_of(name: str, value: object) -> tuple[int, ...] | None:
    """At least one token id; None for any. Raises ConfigError."""
    ids = None if value is None else ids_of(name, value)
    if ids == ():
        raise ConfigError(name, [], "no token may come", "Name ids, or leave it out.")
    return ids


def callables_of(name: str, value: object) -> tuple[Callable[..., Any], ...]:
    """A list of objects that can be called, as a tuple, since a list has no hash. Raises ConfigError."""
    if isinstance(value, str) or not _has_entries(value):
        raise ConfigError(name, value, "not a list", "Give a list.")
    items = tuple(value)
    for item in items:
        if not callable(item):
            remedy = "Give it __call__(logits, history); see specbench.sampling.Processor."
            raise ConfigError(name, type(item).__name__, "not callable", remedy)
        if not isinstance(item, Hashable):
            raise ConfigError(name, type(item).__name__, "no hash", "Write @dataclass(frozen=True), or no __eq__.")
    return items


def _has_entries(value: object) -> TypeGuard[Iterable[Any]]:
    """Returns whether a value can be iterated over; an array of no dimension, which is a number, cannot."""
    return isinstance(value, Iterable) and getattr(value, "ndim", 1) > 0


def texts_of(name: str, value: object) -> tuple[str, ...]:
    """A list of texts, none of them empty. Raises ConfigError."""
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise ConfigError(name, value, "not a list of texts", 'Give texts, such as ["\\n\\n"].')
    for item in value:
        if not isinstance(item, str) or not item:
            raise ConfigError(name, value, f"{item!r} is no text, or an empty one", "Remove it.")
    return tuple(value)


def ids_of(name: str, value: object) -> tuple[int, ...]:
    """A list, array or set of token ids, each of them once. Raises ConfigError."""
    if isinstance(value, str | bytes | Mapping) or not _has_entries(value):
        raise ConfigError(name, value, "not a list of token ids", "Give whole numbers.")
    ids = tuple(plain_number(item) for item in value)
    for item in ids:
        if not is_whole(item) or not 0 <= item <= LARGEST_VOCABULARY:
            raise ConfigError(name, value, f"{item!r} is no token id", "Give whole numbers from 0.")
    return tuple(dict.fromkeys(ids))


def biases_of(name: str, value: object) -> tuple[tuple[int, float], ...] | None:
    """Ids and what is added to their logits, as sorted pairs; None for none. Raises ConfigError."""
    if value is None:
        return None
    pairs = value.items() if isinstance(value, Mapping) else value
    biases: dict[int, float] = {}
    try:
        if isinstance(value, str):
            raise TypeError
        for key, bias in pairs:  # ty: ignore[not-iterable]
            token = int(key) if isinstance(key, str) else plain_number(key)  # keys of JSON are texts
            if token in biases:
                raise ConfigError(name, value, f"token {token} is named twice", "Leave one of them out.")
            biases[token] = float(bias)
    except (TypeError, ValueError, OverflowError):
        raise ConfigError(name, value, "not a mapping of token ids to numbers", "Give {id: bias, ...}.") from None
    ids_of(name, tuple(biases))
    for bias in biases.values():
        if not abs(bias) <= LARGEST_BIAS:
            raise ConfigError(name, value, f"{bias} outside [-100, 100]", "allowed_token_ids bans for certain.")
    return tuple(sorted(biases.items())) or None


def structure_of(name: str, value: object) -> tuple[str, str] | None:
    """The kind of a structure and its text, in JSON if it is a schema or a list; None for none. Raises ConfigError."""
    if value is None:
        return None
    if isinstance(value, tuple) and len(value) == 2:
        value = {value[0]: value[1]}
    kinds = [kind for kind in STRUCTURES if isinstance(value, Mapping) and value.get(kind) is not None]
    if not isinstance(value, Mapping) or len(kinds) != 1 or set(value) - set(STRUCTURES):
        remedy = f"Give one of {', '.join(STRUCTURES)}, such as {{regex: '[0-9]+'}}."
        raise ConfigError(name, value, "does not name one structure", remedy)
    (kind,) = kinds
    text = value[kind]
    if kind in ("regex", "grammar") and not isinstance(text, str):
        raise ConfigError(name, value, f"its {kind} is no text", f"Give one text: {{{kind}: '...'}}.")
    return kind, text if isinstance(text, str) else json.dumps(text)
