"""The prompts that ``specbench.decode`` and ``specbench.record`` are given: texts, or token ids."""

from __future__ import annotations

import operator
import reprlib
from collections.abc import Iterable, Sequence

from specbench.errors import ArgumentError

Prompts = str | Sequence[str] | Sequence[Sequence[int]]


def listed(prompts: Prompts) -> list[str | Sequence[int]]:
    """Each prompt; a text by itself is one. Raises ArgumentError for what holds none."""
    if isinstance(prompts, str):
        return [prompts]
    if isinstance(prompts, bytes) or not isinstance(prompts, Iterable):
        raise ArgumentError(f"prompts: a {type(prompts).__name__}; give a text, or a list of texts or of token ids")
    return list(prompts)


def token_ids(name: str, prompt: object) -> tuple[int, ...]:
    """The ids of one prompt; numpy's and PyTorch's whole numbers will do.

    Args:
        name: what an error calls it.

    Raises:
        ArgumentError: no list of whole numbers.
    """
    wrong = f"{name}: {reprlib.repr(prompt)} is neither a text nor a list of token ids, which are whole numbers"
    if isinstance(prompt, str | bytes) or not isinstance(prompt, Iterable):
        raise ArgumentError(wrong)
    try:
        return tuple(operator.index(token) for token in prompt)
    except TypeError:
        raise ArgumentError(wrong) from None
