"""Values of sampling parameters as somebody gives them: checked, and brought into one form."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence

from specbench.core.checks import plain_number
from specbench.core.errors import ConfigError

LARGEST_VOCABULARY = 2**31 - 1
LARGEST_BIAS = 100.0  # of logit_bias, as OpenAI's interface has it
STRUCTURES = ("json", "regex", "grammar", "choice")


def wrong(name: str, value: object, problem: str, remedy: str) -> ConfigError:
    """The error for a parameter, under its key in a configuration."""
    return ConfigError(f"sampler.{name}", value, problem, remedy)


def check_number(name: str, value: object) -> None:
    """Raises ConfigError for anything but a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise wrong(name, value, "not a finite number", "Give a number.")


def check_whole(name: str, value: object, low: int, high: int, optional: bool) -> None:
    """Raises ConfigError for anything but a whole number from ``low`` to ``high``, or None if it is optional."""
    if value is None and optional:
        return
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise wrong(name, value, f"no whole number from {low} to {high}", "Change it, or leave it out.")


def texts_of(name: str, given: object) -> tuple[str, ...]:
    """A list of texts, none of them empty. Raises ConfigError."""
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise wrong(name, given, "not a list of texts", 'Give texts, such as ["\\n\\n"].')
    for each in given:
        if not isinstance(each, str) or not each:
            raise wrong(name, given, f"{each!r} is no text, or an empty one", "Remove it.")
    return tuple(given)


def ids_of(name: str, given: object) -> tuple[int, ...]:
    """A list, array or set of token ids, each of them once. Raises ConfigError."""
    if isinstance(given, str | Mapping) or not isinstance(given, Iterable):
        raise wrong(name, given, "not a list of token ids", "Give whole numbers.")
    ids = tuple(plain_number(each) for each in given)
    for each in ids:
        if isinstance(each, bool) or not isinstance(each, int) or not 0 <= each <= LARGEST_VOCABULARY:
            raise wrong(name, given, f"{each!r} is no token id", "Give whole numbers from 0.")
    return tuple(dict.fromkeys(ids))


def biases_of(given: object) -> tuple[tuple[int, float], ...] | None:
    """Ids and what is added to their logits, as sorted pairs; None for none. Raises ConfigError."""
    if given is None:
        return None
    pairs = given.items() if isinstance(given, Mapping) else given
    found: dict[int, float] = {}
    try:
        if isinstance(given, str):
            raise TypeError
        for key, bias in pairs:  # ty: ignore[not-iterable]
            token = int(key) if isinstance(key, str) else plain_number(key)  # keys of JSON are texts
            if token in found:
                raise wrong("logit_bias", given, f"token {token} is named twice", "Leave one of them out.")
            found[token] = float(bias)
    except (TypeError, ValueError):
        raise wrong("logit_bias", given, "not a mapping of token ids to numbers", "Give {id: bias, ...}.") from None
    ids_of("logit_bias", tuple(found))
    for bias in found.values():
        if not abs(bias) <= LARGEST_BIAS:
            raise wrong("logit_bias", given, f"{bias} outside [-100, 100]", "allowed_token_ids bans for certain.")
    return tuple(sorted(found.items())) or None


def structure_of(given: object) -> tuple[str, str] | None:
    """The kind of a structure and its text, in JSON if it is a schema or a list; None for none. Raises ConfigError."""
    if given is None:
        return None
    if isinstance(given, tuple) and len(given) == 2:
        given = {given[0]: given[1]}
    kinds = [kind for kind in STRUCTURES if isinstance(given, Mapping) and given.get(kind) is not None]
    if not isinstance(given, Mapping) or len(kinds) != 1 or set(given) - set(STRUCTURES):
        remedy = f"Give one of {', '.join(STRUCTURES)}, such as {{regex: '[0-9]+'}}."
        raise wrong("structured_outputs", given, "does not name one structure", remedy)
    (kind,) = kinds
    asked = given[kind]
    if kind in ("regex", "grammar") and not isinstance(asked, str):
        raise wrong("structured_outputs", given, f"its {kind} is no text", f"Give one text: {{{kind}: '...'}}.")
    return kind, asked if isinstance(asked, str) else json.dumps(asked)
