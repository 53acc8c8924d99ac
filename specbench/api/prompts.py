"""The prompts of ``specbench.decode`` and ``specbench.record``, and each prompt's gamma, seed and sampling."""

from __future__ import annotations

import operator
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import numpy as np
from torch import Tensor

from specbench.core.checks import check_count
from specbench.core.errors import ArgumentError
from specbench.core.machine.provenance import request_seed
from specbench.core.sampling_params import LARGEST_SEED
from specbench.models import Pair
from specbench.replay.survival import LARGEST_GAMMA
from specbench.sampling import SamplingParams

Conversation = Sequence[Mapping[str, str]]
Prompt = str | Sequence[int] | Conversation
Prompts = str | Conversation | Sequence[Prompt]
Seeds = int | Iterable[int]


def listed(prompts: Prompts) -> list[Prompt]:
    """Each prompt; a text or a conversation by itself is one.

    Raises:
        ArgumentError: something that holds no prompts, or holds them in no order. Their places decide their seeds.
    """
    if isinstance(prompts, str):
        return [prompts]
    if isinstance(prompts, bytes | Mapping | AbstractSet) or not isinstance(prompts, Iterable):
        raise ArgumentError(
            f"prompts: a {type(prompts).__name__}; give a text, or a list of texts, of token ids or of conversations"
        )
    items: list[Any] = list(prompts)
    alone = bool(items) and all(isinstance(part, Mapping) for part in items)
    return [items] if alone else items


def encoded(name: str, prompt: Prompt, pair: Pair) -> tuple[int, ...]:
    """Token ids of one prompt of a pair.

    Args:
        name: what an error calls it.

    Raises:
        ArgumentError: no prompt, or ids that the pair does not have.
        ModelError: the tokenizer or its chat template fails on the prompt.
    """
    if isinstance(prompt, Sequence) and len(prompt) > 0 and isinstance(prompt[0], Mapping):
        ids = tuple(pair.encode(_messages(name, prompt)))
    else:
        ids = tuple(pair.encode(prompt)) if isinstance(prompt, str) else token_ids(name, prompt)
    if not ids:
        raise ArgumentError(f"{name}: no tokens")
    if min(ids) < 0 or max(ids) >= pair.vocab_size:
        raise ArgumentError(f"{name}: ids outside 0 to {pair.vocab_size - 1}, the pair's vocabulary")
    return ids


def _messages(name: str, prompt: Sequence[Any]) -> Conversation:
    for number, message in enumerate(prompt):
        if not isinstance(message, Mapping) or any(
            not isinstance(message.get(part), str) for part in ("role", "content")
        ):
            raise ArgumentError(
                f"{name}[{number}]: {reprlib.repr(message)} is no message; give "
                '{"role": "user", "content": "..."}, both texts'
            )
    return prompt


def seeds_of(given: Seeds, prompts: int) -> list[int]:
    """The seeds of the prompts. From one number each prompt gets its own, by its place; a list is taken as it is.

    Raises:
        ArgumentError: too few or too many.
        ConfigError: one outside 0 to 2^63 - 1.
    """
    if isinstance(given, np.ndarray | Tensor):
        given = given.tolist()
    if isinstance(given, str) or not isinstance(given, Iterable):
        seed = check_count("seed", given, 0, LARGEST_SEED)
        return [request_seed(seed, str(i)) for i in range(prompts)]
    seeds = [check_count("seed", number, 0, LARGEST_SEED) for number in given]
    if len(seeds) != prompts:
        raise ArgumentError(f"seed: {len(seeds)} numbers for {prompts} prompts; give one number, or one for each")
    return seeds


def samplings_of(
    given: SamplingParams | Iterable[SamplingParams] | None, prompts: int, several: bool = True
) -> list[SamplingParams]:
    """The sampling parameters of the prompts; a single SamplingParams holds for all.

    Args:
        several: whether prompts may differ in them.

    Raises:
        ArgumentError: too few or too many, or something else.
    """
    if given is None or isinstance(given, SamplingParams):
        return [given or SamplingParams()] * prompts
    form = "SamplingParams(...), or None"
    if not several or isinstance(given, str | Mapping) or not isinstance(given, Iterable):
        raise ArgumentError(f"sampling: a {type(given).__name__}; give specbench.{form}")
    items = list(given)
    if wrong := [i for i, params in enumerate(items) if not isinstance(params, SamplingParams)]:
        raise ArgumentError(f"sampling[{wrong[0]}]: a {type(items[wrong[0]]).__name__}; give specbench.{form}")
    if len(items) != prompts:
        raise ArgumentError(f"sampling: {len(items)} SamplingParams for {prompts} prompts; give one, or one for each")
    return items


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
    """The gammas of the prompts; a single number holds for all.

    Raises:
        ArgumentError: too few or too many numbers, or one too large.
        ConfigError: a gamma that is no whole number from 0.
    """
    if isinstance(given, np.ndarray | Tensor):
        given = given.tolist()
    alone = isinstance(given, str) or not isinstance(given, Iterable)
    numbers = [given] * prompts if alone else list(given)
    if len(numbers) != prompts:
        raise ArgumentError(f"gamma: {len(numbers)} numbers for {prompts} prompts; give one number, or one for each")
    counts = [check_count("gamma", gamma, 0) for gamma in numbers]
    if max(counts) > LARGEST_GAMMA:
        raise ArgumentError(f"gamma={max(counts)}: outside 0..{LARGEST_GAMMA}")
    return counts
