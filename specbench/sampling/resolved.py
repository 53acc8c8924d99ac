"""Sampling parameters in the ids of one vocabulary: texts that may not come as tokens, and what ends a text."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from specbench.core.errors import ConfigError
from specbench.core.sampling_params import SamplingParams


@dataclass(frozen=True)
class ResolvedParams(SamplingParams):
    """What :func:`resolve` makes of sampling parameters whose meaning depends on the model.

    Attributes:
        bad_word_ids: the sequences of ids that ``bad_words`` stands for.
        ending_ids: what ends the text, and may not come before ``min_tokens``.
        thinking_ids: what begins and what ends the thinking that ``thinking_token_budget`` limits.
    """

    bad_word_ids: Sequence[Sequence[int]] = ()
    ending_ids: Sequence[int] = ()
    thinking_ids: tuple[int, int] | None = None


def resolve(
    params: SamplingParams,
    encode: Callable[[str], Sequence[int]],
    stop_ids: Collection[int],
    vocabulary: int,
    thinking_ids: tuple[int, int] | None = None,
) -> SamplingParams:
    """The same parameters, in the ids of a vocabulary where they need any.

    Args:
        encode: the ids of a text, without any that mark its beginning or end.
        stop_ids: the model's own.
        vocabulary: how many ids there are.
        thinking_ids: what begins and what ends thinking; None if the model has no tokens for that.

    Raises:
        ConfigError: an id beyond the vocabulary, a bad word without tokens, or a budget of thinking for a model without
            tokens for it.
    """
    for name in ("logit_bias", "allowed_token_ids", "stop_token_ids"):
        given = getattr(params, name) or ()
        for token in (each[0] if name == "logit_bias" else each for each in given):
            if token >= vocabulary:
                problem = f"id {token} is beyond the vocabulary of {vocabulary}"
                raise ConfigError(f"sampler.{name}", token, problem, f"Use ids from 0 to {vocabulary - 1}.")
    if params.thinking_token_budget is not None and thinking_ids is None:
        problem = "the target's tokenizer has no tokens that are known to begin and end thinking"
        remedy = "Name them, such as pair.thinking_tokens=[<think>,</think>], or leave the budget out."
        raise ConfigError("sampler.thinking_token_budget", params.thinking_token_budget, problem, remedy)
    if not params.bad_words and params.min_tokens == 0 and params.thinking_token_budget is None:
        return params
    asked = {each.name: getattr(params, each.name) for each in dataclasses.fields(SamplingParams)}
    return ResolvedParams(
        **asked,
        bad_word_ids=tuple(dict.fromkeys(ids for word in params.bad_words for ids in _sequences(word, encode))),
        ending_ids=tuple(sorted(params.ids_that_end(frozenset(stop_ids)))),
        thinking_ids=thinking_ids,
    )


def _sequences(word: str, encode: Callable[[str], Sequence[int]]) -> list[tuple[int, ...]]:
    """The tokens of a word by itself, and of the same word after a space, which many vocabularies hold apart."""
    bare = word.lstrip(" ") or word
    found = [tuple(encode(text)) for text in (bare, f" {bare}")]
    if not all(found):
        raise ConfigError("sampler.bad_words", word, "has no tokens", "Remove it, or write it out.")
    return found
