"""Penalties, biases and bans in the plainest Python, a row and a token at a time."""

import math
from collections.abc import Sequence

from specbench.sampling import SamplingParams
from specbench.sampling.resolved import ResolvedParams, resolve

THINKING = (3, 9)  # c begins it, and i ends it


def spelled(text: str) -> list[int]:
    """Ids of a text in a vocabulary of letters: a is 1, b is 2, ..., and a space 0."""
    return [0 if letter == " " else ord(letter) - ord("a") + 1 for letter in text]


def params(vocabulary: int = 40, stop_ids: Sequence[int] = (3, 7), **settings: object) -> SamplingParams:
    """Sampling parameters whose texts are spelled in letters."""
    return resolve(SamplingParams.from_mapping(settings), spelled, stop_ids, vocabulary, thinking_ids=THINKING)


def shaped_logits(
    logits: Sequence[float], sampling: SamplingParams, prompt: Sequence[int], continuation: Sequence[int]
) -> list[float]:
    """The logits of the token after ``prompt + continuation``."""
    shaped = []
    bias = dict(sampling.logit_bias or ())
    for token, logit in enumerate(logits):
        value = logit + bias.get(token, 0.0)
        if token in prompt or token in continuation:
            value = value / sampling.repetition_penalty if value > 0 else value * sampling.repetition_penalty
        times = sum(other == token for other in continuation)
        value -= sampling.frequency_penalty * times
        if times:
            value -= sampling.presence_penalty
        if sampling.allowed_token_ids is not None and token not in sampling.allowed_token_ids:
            value = -math.inf
        if isinstance(sampling, ResolvedParams):
            for *before, last in sampling.bad_word_ids:
                if token == last and list(continuation[max(0, len(continuation) - len(before)) :]) == before:
                    value = -math.inf
            if token in sampling.ending_ids and len(continuation) < sampling.min_tokens:
                value = -math.inf
        shaped.append(value)
    if thought_enough(sampling, [*prompt, *continuation]):
        return [0.0 if token == sampling.thinking_ids[1] else -math.inf for token in range(len(logits))]
    return shaped


def thought_enough(sampling: SamplingParams, text: Sequence[int]) -> bool:
    """Whether the end of thinking has to come: token by token, counted from where thinking began."""
    if sampling.thinking_token_budget is None:
        return False
    start, end = sampling.thinking_ids
    thought = None
    for token in text:
        if token == end:
            thought = None
        elif thought is not None:
            thought += 1
        elif token == start:
            thought = 0
    return thought is not None and thought >= sampling.thinking_token_budget


EACH = {
    "presence": {"presence_penalty": 1.5},
    "a bonus for presence": {"presence_penalty": -1.0},
    "frequency": {"frequency_penalty": 0.7},
    "repetition": {"repetition_penalty": 1.7},
    "a bonus for repetition": {"repetition_penalty": 0.6},
    "bias": {"logit_bias": {0: 5.0, 9: -100.0, 39: 2.5}},
    "allowed": {"allowed_token_ids": [0, 1, 2, 3, 5, 9, 31, 32, 38]},
    "one bad word": {"bad_words": ["a"]},
    "bad words": {"bad_words": ["ab", "bab", " cab", "d"]},
    "min_tokens": {"min_tokens": 4, "stop_token_ids": [9]},
    "min_tokens alone": {"min_tokens": 4, "stop_token_ids": [9], "ignore_eos": True},
}
MIX = {name: value for case in EACH.values() for name, value in case.items()} | {
    "presence_penalty": 0.4, "repetition_penalty": 1.3, "ignore_eos": False,
    "allowed_token_ids": [*range(0, 12), 31, 32, 38],
}  # fmt: skip
EACH["all together"] = MIX
EACH["nothing"] = {}
# Not among them, since it would hide what the others do. The prompts of tests/sampling/test_shaping.py think already.
THOUGHTS = {
    "a budget": {"thinking_token_budget": 4},
    "a budget that the prompt has spent": {"thinking_token_budget": 0, "bad_words": ["ab"]},
    "a budget beside a ban of the end": {
        "thinking_token_budget": 9, "allowed_token_ids": [0, 1, 2], "repetition_penalty": 1.4, "logit_bias": {9: -7.0},
    },
}  # fmt: skip
EACH |= THOUGHTS
