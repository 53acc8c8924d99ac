"""Sampling parameters in the ids of one vocabulary: bad words, ids that end a text, ids that begin and end thinking."""

import dataclasses
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from specbench.core.errors import ConfigError
from specbench.core.sampling_params import SamplingParams


@dataclass(frozen=True)
class ResolvedParams(SamplingParams):
    """Sampling parameters that depend on the model's vocabulary, made by :func:`resolve`.

    Attributes:
        bad_word_ids: the sequences of ids of ``bad_words``.
        ending_ids: the ids that end the text, which are banned before ``min_tokens``.
        thinking_ids: the ids that begin and end the thinking that ``thinking_token_budget`` limits.
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
    """Returns the parameters with the ids of a vocabulary if they need any.

    Args:
        encode: returns the ids of a text, without special ids at its beginning or end.
        stop_ids: the model's own.
        thinking_ids: the ids that begin and end thinking; None if the model has no tokens for that.

    Raises:
        ConfigError: an id beyond the vocabulary, a bad word without tokens, or a thinking budget for a model without
            thinking tokens.
    """
    for name in ("logit_bias", "allowed_token_ids", "stop_token_ids"):
        entries = getattr(params, name) or ()
        for token in (entry[0] if name == "logit_bias" else entry for entry in entries):
            if token >= vocabulary:
                problem = f"id {token} is beyond the vocabulary of {vocabulary}"
                raise ConfigError(f"sampler.{name}", token, problem, f"Use ids from 0 to {vocabulary - 1}.")
    if params.thinking_token_budget is not None and thinking_ids is None:
        problem = "the target's tokenizer has no tokens that are known to begin and end thinking"
        remedy = "Name them, such as pair.thinking_tokens=[<think>,</think>], or leave the budget out."
        raise ConfigError("sampler.thinking_token_budget", params.thinking_token_budget, problem, remedy)
    if not params.bad_words and params.min_tokens == 0 and params.thinking_token_budget is None:
        return params
    fields = {field.name: getattr(params, field.name) for field in dataclasses.fields(SamplingParams)}
    return ResolvedParams(
        **fields,
        bad_word_ids=tuple(dict.fromkeys(ids for word in params.bad_words for ids in _sequences(word, encode))),
        ending_ids=tuple(sorted(params.ids_that_end(frozenset(stop_ids)))),
        thinking_ids=thinking_ids,
    )


def _sequences(word: str, encode: Callable[[str], Sequence[int]]) -> list[tuple[int, ...]]:
    """Returns the ids of a word by itself and after a space, since many vocabularies have different tokens for them."""
    bare = word.lstrip(" ") or word
    sequences = [tuple(encode(text)) for text in (bare, f" {bare}")]
    if not all(sequences):
        raise ConfigError("sampler.bad_words", word, "has no tokens", "Remove it, or write it out.")
    return sequences
