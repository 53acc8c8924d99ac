"""The tokens between which a model thinks before it answers."""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from specbench.core.errors import ConfigError

KEY = "pair.thinking_tokens"
KNOWN = (  # of Qwen, DeepSeek and others; of Mistral; of Seed
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
)


def thinking_ids(
    tokenizer: PreTrainedTokenizerBase, named: Sequence[str] | None, vocab_size: int
) -> tuple[int, int] | None:
    """The ids of the tokens that begin and end thinking.

    Args:
        named: their texts; None takes the first of KNOWN that the tokenizer has.
        vocab_size: ids from here on are none of the model's.

    Returns:
        None if nothing is named, and the tokenizer has none of KNOWN.

    Raises:
        ConfigError: not two texts, two equal texts, or a text that is no single token.
    """
    if named is None:
        vocabulary = tokenizer.get_vocab()
        ids = ([vocabulary.get(token, vocab_size) for token in both] for both in KNOWN)
        return next(((start, end) for start, end in ids if max(start, end) < vocab_size), None)
    if isinstance(named, str) or len(named) != 2 or named[0] == named[1]:
        raise ConfigError(KEY, named, "not two different texts", "Name start and end, such as [<think>,</think>].")
    start, end = (_single(tokenizer, text, vocab_size) for text in named)
    return start, end


def _single(tokenizer: PreTrainedTokenizerBase, text: str, vocab_size: int) -> int:
    ids = tokenizer.encode(text, add_special_tokens=False)
    if len(ids) != 1 or ids[0] >= vocab_size:
        problem = f"the target's tokenizer makes {len(ids)} tokens of {text!r}"
        raise ConfigError(KEY, text, problem, "Name two texts that are a single token each.")
    return ids[0]
