"""The prompts of ``specbench.decode`` and ``specbench.record``: texts, token ids and conversations."""

import operator
import reprlib
from collections.abc import Mapping, Sequence
from typing import Any

from specbench.api.per_request import entries
from specbench.core.errors import ArgumentError
from specbench.models import Pair

Conversation = Sequence[Mapping[str, str]]
Prompt = str | Sequence[int] | Conversation
Prompts = str | Conversation | Sequence[Prompt]


def split_prompts(prompts: Prompts) -> list[Prompt]:
    """Each prompt; a text or a conversation by itself is one.

    Raises:
        ArgumentError: something that holds no prompts, or holds them in no order. Their places decide their seeds.
    """
    if isinstance(prompts, str):
        return [prompts]
    items = entries("prompts", prompts, "a text, or a list of texts, of token ids or of conversations")
    alone = bool(items) and all(isinstance(part, Mapping) for part in items)
    return [items] if alone else items


def encode_prompt(name: str, prompt: Prompt, pair: Pair) -> tuple[int, ...]:
    """Token ids of one prompt of a pair.

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


def token_ids(name: str, prompt: object) -> tuple[int, ...]:
    """The ids of one prompt; numpy's and PyTorch's whole numbers will do.

    Raises:
        ArgumentError: no list of whole numbers.
    """
    try:
        tokens = entries(name, prompt, "token ids")
        if not any(isinstance(token, bool) for token in tokens):
            return tuple(map(operator.index, tokens))
    except (ArgumentError, TypeError):
        pass
    shown = reprlib.repr(prompt)
    raise ArgumentError(f"{name}: {shown} is neither a text nor a list of token ids, which are whole numbers")
