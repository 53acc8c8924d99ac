"""The prompts that ``specbench.decode`` and ``specbench.record`` are given: texts, or token ids; and their gammas."""

from __future__ import annotations

import operator
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet

import numpy as np
from torch import Tensor

from specbench.checks import check_count
from specbench.errors import ArgumentError
from specbench.replay.survival import LARGEST_GAMMA

Prompts = str | Sequence[str] | Sequence[Sequence[int]]


def listed(prompts: Prompts) -> list[str | Sequence[int]]:
    """Each prompt; a text by itself is one. Raises ArgumentError for what holds none, or holds them in no order: the
    place of a prompt decides its seed.
    """
    if isinstance(prompts, str):
        return [prompts]
    if isinstance(prompts, bytes | Mapping | AbstractSet) or not isinstance(prompts, Iterable):
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
        if not any(isinstance(token, bool) for token in prompt):
            return tuple(operator.index(token) for token in prompt)
    except TypeError:
        pass
    raise ArgumentError(wrong)


def gammas_of(given: int | Iterable[int], prompts: int) -> list[int]:
    """The gamma of each of so many prompts; a number by itself is that of all.

    Raises:
        ArgumentError: too few or too many, or one that is too large.
        ConfigError: one that is no whole number from 0.
    """
    if isinstance(given, np.ndarray | Tensor):
        given = given.tolist()
    alone = isinstance(given, str) or not isinstance(given, Iterable)
    each = [given] * prompts if alone else list(given)
    if len(each) != prompts:
        raise ArgumentError(f"gamma: {len(each)} numbers for {prompts} prompts; give one number, or one for each")
    counts = [check_count("gamma", gamma, 0) for gamma in each]
    if max(counts) > LARGEST_GAMMA:
        raise ArgumentError(f"gamma={max(counts)}: outside 0..{LARGEST_GAMMA}")
    return counts
