"""Sampling parameters of one request, by the names that serving engines use, validated where they are made.

Needs no PyTorch, which ``sampling`` does.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specbench.core.checks import plain_number
from specbench.core.sampling_values import (
    LARGEST_VOCABULARY,
    biases_of,
    check_number,
    check_whole,
    ids_of,
    structure_of,
    texts_of,
    wrong,
)

LARGEST_LENGTH = 1_000_000
LARGEST_SEED = 2**63 - 1  # what rng.py takes
MOST_LOGPROBS = 1000
MOST_CONTINUATIONS = 1024
LOGPROBS = ("raw_logprobs", "processed_logprobs")
NUMBERS = ("temperature", "top_k", "top_p", "min_p")
PENALTIES = ("presence_penalty", "frequency_penalty", "repetition_penalty")
TOKEN_RULES = ("logit_bias", "allowed_token_ids", "bad_words")
SHAPING = (*PENALTIES, "min_tokens", *TOKEN_RULES, "thinking_token_budget")
BANS = ("allowed_token_ids", "bad_words", "min_tokens", "structured_outputs", "processors")  # those that ban tokens
_COUNTS = {  # the least and the most of what may be None
    "min_tokens": (0, LARGEST_LENGTH),
    "thinking_token_budget": (0, LARGEST_LENGTH),
    "max_tokens": (1, LARGEST_LENGTH),
    "n": (1, MOST_CONTINUATIONS),
    "seed": (0, LARGEST_SEED),
    "logprobs": (0, MOST_LOGPROBS),
    "prompt_logprobs": (0, MOST_LOGPROBS),
    "truncate_prompt_tokens": (1, LARGEST_LENGTH),
}
_NEEDED = ("min_tokens", "n")


@dataclass(frozen=True)
class SamplingParams:
    """How a request samples, what ends its text, and how that is shown. What shapes a distribution is applied to target
    and draft alike, position by position: whatever counts tokens counts the drafted ones before a position too.

    Attributes:
        temperature: 0 is greedy (lowest index on ties).
        top_k: keep the k most likely tokens, and those tied with the last; 0 or -1 is off.
        top_p: keep the smallest set of most likely tokens whose mass reaches top_p, in (0, 1]; 1 is off. Mass is
            counted after top-k, as Hugging Face transformers and vLLM do.
        min_p: keep tokens at least min_p times as likely as the most likely one, in [0, 1); 0 is off.
        processors: what changes the logits first, by what precedes each position
            (:class:`specbench.sampling.Processor`); one after the other.
        presence_penalty: taken from the logit of each token that the continuation holds already, in [-2, 2].
        frequency_penalty: taken from it once for each time that it holds it, in [-2, 2].
        repetition_penalty: divides a positive logit, and multiplies a negative one, of each token that the prompt or
            the continuation holds; above 0; 1 is off (Keskar et al., "CTRL", arXiv 1909.05858).
        logit_bias: what is added to the logits of some token ids, each in [-100, 100]; a mapping, kept as sorted pairs.
        allowed_token_ids: the only ids that may come; None is all.
        bad_words: texts that may not come in the continuation, as any of their tokenisations by themselves and after a
            space.
        min_tokens: tokens before which nothing that stops a text may come.
        structured_outputs: what the text has to be: one of ``json`` (a schema), ``regex``, ``grammar`` (in EBNF) or
            ``choice`` (a list of texts); None is anything.
        stop: texts that end the continuation, which they are cut from.
        stop_token_ids: ids that end it, beside the model's own.
        include_stop_str_in_output: whether the text of ``stop`` that ended it is kept.
        ignore_eos: whether the model's own stop tokens end nothing.
        thinking_token_budget: tokens between the start and the end of thinking, at most; then the end is forced,
            whatever else bans it. None is no limit.
        max_tokens: of the continuation, at most; None takes the run's max_new_tokens.
        n: continuations of the prompt, each with a seed of its own.
        seed: of the request; None derives it from the run's.
        logprobs: the most likely tokens whose log-probabilities are told at each place of the continuation, beside
            those of its own tokens; None tells none.
        prompt_logprobs: the same for the prompt, always raw.
        logprobs_mode: what ``logprobs`` are of: ``raw_logprobs``, of the target's logits as they are, or
            ``processed_logprobs``, of the distribution that tokens are drawn from.
        skip_special_tokens: whether the text shown leaves them out.
        truncate_prompt_tokens: the last tokens of the prompt that are kept, so many; None keeps all.

    ``max_tokens``, ``n``, ``seed`` and ``truncate_prompt_tokens`` are read when requests are made.

    Raises:
        ConfigError: a value outside its range, or two that contradict each other.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    processors: Sequence[Callable[..., Any]] = ()
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] | Sequence[tuple[int, float]] | None = None
    allowed_token_ids: Sequence[int] | None = None
    bad_words: Sequence[str] = ()
    min_tokens: int = 0
    structured_outputs: Mapping[str, Any] | tuple[str, str] | None = None
    stop: str | Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    thinking_token_budget: int | None = None
    max_tokens: int | None = None
    n: int = 1
    seed: int | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logprobs_mode: str = LOGPROBS[0]
    skip_special_tokens: bool = True
    truncate_prompt_tokens: int | None = None

    def __post_init__(self) -> None:
        self._set("processors", tuple(self.processors))  # a list has no hash
        for name in (*NUMBERS, *PENALTIES, *_COUNTS):
            self._set(name, plain_number(getattr(self, name)))
        for name in (*NUMBERS, *PENALTIES):
            check_number(name, getattr(self, name))
        self._check_distribution()
        for name, (low, high) in _COUNTS.items():
            check_whole(name, getattr(self, name), low, high, name not in _NEEDED)
        for name in ("include_stop_str_in_output", "ignore_eos", "skip_special_tokens"):
            if not isinstance(getattr(self, name), bool):
                raise wrong(name, getattr(self, name), "neither true nor false", "Use true or false.")
        self._set("stop", texts_of("stop", (self.stop,) if isinstance(self.stop, str) else self.stop))
        self._set("bad_words", texts_of("bad_words", self.bad_words))
        self._set("stop_token_ids", ids_of("stop_token_ids", self.stop_token_ids))
        self._set("logit_bias", biases_of(self.logit_bias))
        self._set("structured_outputs", structure_of(self.structured_outputs))
        if self.allowed_token_ids is not None:
            self._set("allowed_token_ids", ids_of("allowed_token_ids", self.allowed_token_ids))
            if not self.allowed_token_ids:
                raise wrong("allowed_token_ids", [], "no token may come", "Name ids, or leave it out.")
        if self.logprobs_mode not in LOGPROBS:
            raise wrong("logprobs_mode", self.logprobs_mode, "not known", f"Use {' or '.join(LOGPROBS)}.")
        if self.thinking_token_budget is not None and self.structured_outputs is not None:
            problem = "structured_outputs hold from the first token, and leave no place to think"
            raise wrong("thinking_token_budget", self.thinking_token_budget, problem, "Leave one of them out.")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            problem = f"above max_tokens={self.max_tokens}"
            raise wrong("min_tokens", self.min_tokens, problem, "Lower it, or raise max_tokens.")

    @staticmethod
    def from_mapping(given: Mapping[str, Any], **defaults: Any) -> SamplingParams:
        """Parameters by their names, as a configuration or a request names them; null is the default.

        Args:
            defaults: of what is not given.

        Raises:
            ConfigError: a name that is not known, or a value outside its range.
        """
        known = {each.name for each in dataclasses.fields(SamplingParams)}
        for name, value in given.items():
            if name not in known:
                raise wrong(name, value, "unknown parameter", f"Known are {', '.join(sorted(known))}.")
        return SamplingParams(**{**defaults, **{name: value for name, value in given.items() if value is not None}})

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def _check_distribution(self) -> None:
        if self.temperature < 0:
            raise wrong("temperature", self.temperature, "below 0", "Use 0 for greedy, or a positive number.")
        if 0 < self.temperature < 1e-3:
            remedy = "Use 0 for greedy, or 0.001 and more."
            raise wrong("temperature", self.temperature, "so small that logits overflow", remedy)
        if self.top_k != int(self.top_k) or not -1 <= self.top_k <= LARGEST_VOCABULARY:
            raise wrong("top_k", self.top_k, "not a count of tokens", "Use a whole number; 0 or -1 is off.")
        if not 0 < self.top_p <= 1:
            raise wrong("top_p", self.top_p, "outside (0, 1]", "Use 1.0 for off.")
        if not 0 <= self.min_p < 1:
            raise wrong("min_p", self.min_p, "outside [0, 1)", "Use 0.0 for off.")
        for name in ("presence_penalty", "frequency_penalty"):
            if not -2 <= getattr(self, name) <= 2:
                raise wrong(name, getattr(self, name), "outside [-2, 2]", "Use 0.0 for off.")
        if self.repetition_penalty <= 0:
            raise wrong("repetition_penalty", self.repetition_penalty, "not above 0", "Use 1.0 for off.")

    def check_length(self, most: int) -> None:
        """Checks them against the length of a text.

        Args:
            most: max_new_tokens, which max_tokens replaces.

        Raises:
            ConfigError: min_tokens above it.
        """
        if self.max_tokens is None and self.min_tokens > most:
            problem = f"above max_new_tokens={most}"
            raise wrong("min_tokens", self.min_tokens, problem, "Lower it, or raise max_new_tokens.")

    def ids_that_end(self, own: frozenset[int]) -> frozenset[int]:
        """The ids that end a text; ``own`` are the model's, which ``ignore_eos`` drops."""
        return (frozenset() if self.ignore_eos else own) | frozenset(self.stop_token_ids)

    @property
    def numbers(self) -> dict[str, float]:
        """The four numbers of temperature and truncation, by name; top_k is a whole number."""
        return {
            "temperature": float(self.temperature),
            "top_k": int(self.top_k),
            "top_p": float(self.top_p),
            "min_p": float(self.min_p),
        }

    @property
    def shaping(self) -> dict[str, Any]:
        """Those of SHAPING that are not off, by name: what changes logits, most of it by the text before a position."""
        asked = {name: getattr(self, name) for name in SHAPING if getattr(self, name) != getattr(SamplingParams, name)}
        return {name: float(value) if name in PENALTIES else value for name, value in asked.items()}

    @property
    def token_rules(self) -> str:
        """Those of them that name tokens, as JSON; empty if there are none."""
        named = {name: value for name, value in self.shaping.items() if name in TOKEN_RULES}
        return json.dumps(named, sort_keys=True) if named else ""

    @property
    def shaping_text(self) -> str:
        """``shaping`` as JSON; empty if nothing is asked."""
        return json.dumps(self.shaping, sort_keys=True) if self.shaping else ""

    @property
    def structure(self) -> tuple[str, str] | None:
        """Kind and text of structured_outputs."""
        given = self.structured_outputs
        return given if isinstance(given, tuple) else None  # a mapping is a pair since it was checked

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @property
    def truncates(self) -> bool:
        """Whether any token can be cut off, which is when a row needs a cutoff."""
        return not self.greedy and (self.top_k > 0 or self.top_p < 1 or self.min_p > 0)


def processors_named(processors: Sequence[Any], params: SamplingParams) -> str:
    """What rows and traces call processors: JSON, with what the text has to be at its end; empty for none.

    Args:
        processors: each as ``sampler.processors`` names it.
        params: for their structured_outputs.
    """
    named = [*processors, *([] if params.structure is None else [{"structured_outputs": dict([params.structure])}])]
    return json.dumps(named, sort_keys=True, default=lambda value: type(value).__name__) if named else ""
