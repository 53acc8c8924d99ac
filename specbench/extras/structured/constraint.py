"""Constrained decoding: only tokens that keep the continuation inside a grammar are allowed.

A bit mask at each position has those tokens (Dong et al., "XGrammar", arXiv 2411.15100). A Constraint is a processor
like any other, so that target and draft are masked alike at each position of the draft, and decoding stays lossless:
tokens are sampled from the target's distribution given that the grammar goes on.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Collection, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int32
from torch import Tensor

from specbench.core.errors import ArgumentError, ConfigError
from specbench.core.mask import BITS, Mask
from specbench.core.sampling_params import SamplingParams
from specbench.extras.structured.grammars import KEY, grammar_of, xgrammar
from specbench.sampling.history import History

MOST_MATCHERS = 4096  # matchers that a constraint keeps


class Constraint:
    """A grammar over the continuation, without the prompt. At the end of the grammar only the model's stop tokens are
    allowed. After a token that the grammar forbids every token is allowed: a drafter may propose such a token, but no
    verifier accepts it.

    The allowed tokens are a function of the tokens before each position. The constraint keeps a matcher for each
    request only to save work: the matcher is rolled back to the last token that it shares with the text, and goes on.

    Args:
        structure: kind and text of SamplingParams.structured_outputs.
        compiled: the grammar over a vocabulary, an xgrammar.CompiledGrammar.
        vocabulary: tokens of the logits.
        stop_ids: the ids that end a text.
    """

    capturable = False  # matchers work on the host
    parameter = "structured_outputs"  # see specbench.core.extensions

    def __init__(self, structure: tuple[str, str], compiled: Any, vocabulary: int, stop_ids: Collection[int]):
        self.structure, self.vocabulary = structure, vocabulary
        self._compiled, self._words = compiled, -(-vocabulary // BITS)
        self._matchers: dict[tuple[int, int], _Matcher] = {}
        ended = torch.zeros(self._words * BITS, dtype=torch.bool)
        ended[list(stop_ids)] = True
        self._ended = ended[:vocabulary]

    def __repr__(self) -> str:
        return f"Constraint({self.structure[0]}: {self.structure[1]})"

    def __call__(self, logits: Float[Tensor, "n V"], history: History) -> Float[Tensor, "n V"]:
        """See :class:`specbench.sampling.Processor`. Raises ArgumentError for logits of another vocabulary."""
        if logits.shape[1] != self.vocabulary:
            raise ArgumentError(f"logits: {logits.shape[1]} tokens; {self} was compiled for {self.vocabulary}")
        return logits.masked_fill(~self.allowed(history).to(logits.device), -math.inf)

    def allowed(self, history: History) -> Bool[Tensor, "n V"]:
        """Returns the tokens that are allowed at each position; on the CPU."""
        prompts = history.prompt_lengths
        first = int(prompts.min()) if len(prompts) else 0
        tokens, request = history.tokens[:, first:].tolist(), history.request.tolist()
        # A prompt that is fed in pieces is not complete: its row has no continuation yet.
        begin = (prompts[history.request] - first).tolist()
        end = (history.lengths - first).clamp(min=0).tolist()
        bitmask = torch.full((len(request), self._words), -1, dtype=torch.int32)
        ended = torch.zeros(len(request), dtype=torch.bool)
        for row, text in enumerate(tokens):
            key = len(prompts), request[row]  # chains and nodes of trees differ in the size of their batch
            matcher = self._take_matcher(key)
            ended[row] = matcher.follow(text[begin[row] : end[row]], bitmask, row)
            self._matchers[key] = matcher
        banned = Mask(torch.ones_like(ended), bitmask, 1).banned(self.vocabulary)
        return torch.where(ended[:, None], self._ended, ~banned)

    def _take_matcher(self, key: tuple[int, int]) -> _Matcher:
        """Removes and returns a matcher, or makes one: a call that is interrupted keeps none that is half moved."""
        if len(self._matchers) >= MOST_MATCHERS:
            self._matchers.clear()
        return self._matchers.pop(key, None) or _Matcher(xgrammar().GrammarMatcher(self._compiled))


class _Matcher:
    """An xgrammar.GrammarMatcher and the tokens that it has accepted."""

    def __init__(self, matcher: Any):
        self.matcher, self.accepted = matcher, []

    def follow(self, text: list[int], bitmask: Int32[Tensor, "n words"], row: int) -> bool:
        """Moves to the text's end and fills in its row; returns whether a stop token has ended the text.

        The row does not change if that has happened, or after a token that the grammar forbids.
        """
        common = _common(self.accepted, text)
        if common < len(self.accepted):
            self.matcher.rollback(len(self.accepted) - common)
            del self.accepted[common:]
        for token in text[common:]:
            if self.matcher.is_terminated():
                return True
            if not self.matcher.accept_token(token):
                return False
            self.accepted.append(token)
        if not self.matcher.is_terminated():
            self.matcher.fill_next_token_bitmask(bitmask, row)
            return False
        return True


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """Returns the length of the common prefix of two texts."""
    shorter = min(len(one), len(other))
    if one[:shorter] == other[:shorter]:
        return shorter
    return next(i for i in range(shorter) if one[i] != other[i])


def constrain(sampling: SamplingParams, tokenizer: Any, vocabulary: int, stop_ids: frozenset[int]) -> SamplingParams:
    """Returns the parameters with a Constraint as their last processor, if they have structured outputs.

    Args:
        tokenizer: of transformers; the texts of its tokens are needed.

    Raises:
        ConfigError: a structure that cannot be compiled, or no stop token, so that no token could follow its end.
        NotInstalledError: xgrammar is not installed.
    """
    if sampling.structure is None or any(isinstance(processor, Constraint) for processor in sampling.processors):
        return sampling
    if not stop_ids:
        problem = "no token ends a text, and only such a token may follow the end of the structure"
        remedy = "Give the target's generation_config.json an eos_token_id."
        if sampling.ignore_eos:
            remedy = "Leave ignore_eos out, or name an id in stop_token_ids."
        raise ConfigError(KEY, sampling.structure, problem, remedy)
    constraint = _constraint(sampling.structure, tokenizer, vocabulary, stop_ids)
    return dataclasses.replace(sampling, processors=(*sampling.processors, constraint))


@functools.lru_cache(maxsize=64)
def _constraint(structure: tuple[str, str], tokenizer: Any, vocabulary: int, stop_ids: frozenset[int]) -> Constraint:
    """Returns one Constraint for equal structures, so that the requests that share it are masked together."""
    grammar = grammar_of(*structure)
    compiled = _compiler(tokenizer, vocabulary, stop_ids).compile_grammar(grammar)
    return Constraint(structure, compiled, vocabulary, stop_ids)


@functools.lru_cache(maxsize=4)
def _compiler(tokenizer: Any, vocabulary: int, stop_ids: frozenset[int]) -> Any:
    package = xgrammar()
    stops = sorted(stop_ids)
    about = package.TokenizerInfo.from_huggingface(tokenizer, vocab_size=vocabulary, stop_token_ids=stops)
    return package.GrammarCompiler(about, max_threads=1)
