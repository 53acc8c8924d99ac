"""Sampling parameters of one request, by the names that serving engines use, validated where they are made.

Each parameter is one field of SamplingParams: its name, type, default, check and group. Hydra's schema of conf/sampler,
the columns that show where runs differ, and what protocols refuse are derived from the fields. Needs no PyTorch, which
``sampling`` does.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_type_hints

from specbench.core.checks import check_flag
from specbench.core.errors import ConfigError
from specbench.core.sampling_values import (
    Check,
    biases_of,
    callables_of,
    count_of_tokens,
    ids_of,
    number,
    one_of,
    some_ids_of,
    stops_of,
    structure_of,
    texts_of,
    whole,
)

LARGEST_LENGTH = 1_000_000
LARGEST_SEED = 2**63 - 1  # what rng.py takes
MOST_LOGPROBS = 1000
MOST_CONTINUATIONS = 1024
LOGPROBS = ("raw_logprobs", "processed_logprobs")

# Groups of parameters
TEMPERATURE = "temperature"
TRUNCATION = "truncation"  # a number by which unlikely tokens are removed
PENALTY = "penalty"
TOKEN_RULE = "token rule"  # names tokens that come more often, less often or never
LIMIT = "limit"  # of tokens: what may come depends on how many there are
TEXT = "text"  # what the text has to be, and processors
END = "end"  # of a text
REQUEST = "request"  # read when requests are made
SHOWN = "shown"  # how a text is shown


def _parameter(
    default: Any, group: str, check: Check, schema: Any = None, bans: bool = False, plain_work: bool = False
) -> Any:
    """A field of SamplingParams.

    Args:
        default: which switches it off.
        group: one of the above.
        schema: its type in a yaml, where OmegaConf does not know the field's own.
        bans: whether it can ban tokens.
        plain_work: whether the time of plain decoding depends on it, by more than the texts that come of it.
    """
    metadata = {"group": group, "check": check, "schema": schema, "bans": bans, "plain_work": plain_work}
    return dataclasses.field(default=default, metadata=metadata)


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
            the continuation holds; 0.001 or more; 1 is off (Keskar et al., "CTRL", arXiv 1909.05858).
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
        truncate_prompt_tokens: the number of last prompt tokens to keep; None keeps all.

    ``max_tokens``, ``n``, ``seed`` and ``truncate_prompt_tokens`` are read when requests are made.

    Raises:
        ConfigError: a value outside its range, or two that contradict each other.
    """

    temperature: float = _parameter(
        1.0, TEMPERATURE, number("[0, inf)", "Use 0 for greedy, or 0.001 and more.", least=1e-3)
    )
    top_k: int = _parameter(0, TRUNCATION, count_of_tokens)
    top_p: float = _parameter(1.0, TRUNCATION, number("(0, 1]", "Use 1.0 for off."))
    min_p: float = _parameter(0.0, TRUNCATION, number("[0, 1)", "Use 0.0 for off."))
    processors: Sequence[Callable[..., Any]] = _parameter(
        (), TEXT, callables_of, schema=list[Any], bans=True, plain_work=True
    )
    presence_penalty: float = _parameter(0.0, PENALTY, number("[-2, 2]", "Use 0.0 for off."))
    frequency_penalty: float = _parameter(0.0, PENALTY, number("[-2, 2]", "Use 0.0 for off."))
    repetition_penalty: float = _parameter(
        1.0, PENALTY, number("(0, inf)", "Use 1.0 for off, or 0.001 and more.", least=1e-3)
    )
    # Mappings are Any in the schema: OmegaConf cannot put one in the place of a None that is typed so.
    logit_bias: Mapping[int, float] | Sequence[tuple[int, float]] | None = _parameter(
        None, TOKEN_RULE, biases_of, schema=Any
    )
    allowed_token_ids: Sequence[int] | None = _parameter(
        None, TOKEN_RULE, some_ids_of, schema=list[int] | None, bans=True
    )
    bad_words: Sequence[str] = _parameter((), TOKEN_RULE, texts_of, schema=list[str], bans=True)
    min_tokens: int = _parameter(0, LIMIT, whole(0, LARGEST_LENGTH, optional=False), bans=True)
    structured_outputs: Mapping[str, Any] | tuple[str, str] | None = _parameter(
        None, TEXT, structure_of, schema=Any, bans=True, plain_work=True
    )
    stop: str | Sequence[str] = _parameter((), END, stops_of, schema=list[str])
    stop_token_ids: Sequence[int] = _parameter((), END, ids_of, schema=list[int])
    include_stop_str_in_output: bool = _parameter(False, SHOWN, check_flag)
    ignore_eos: bool = _parameter(False, END, check_flag)
    thinking_token_budget: int | None = _parameter(None, LIMIT, whole(0, LARGEST_LENGTH))
    max_tokens: int | None = _parameter(None, END, whole(1, LARGEST_LENGTH), plain_work=True)
    n: int = _parameter(1, REQUEST, whole(1, MOST_CONTINUATIONS, optional=False), plain_work=True)
    seed: int | None = _parameter(None, REQUEST, whole(0, LARGEST_SEED))
    logprobs: int | None = _parameter(None, SHOWN, whole(0, MOST_LOGPROBS))
    prompt_logprobs: int | None = _parameter(None, SHOWN, whole(0, MOST_LOGPROBS))
    logprobs_mode: str = _parameter(LOGPROBS[0], SHOWN, one_of(*LOGPROBS))
    skip_special_tokens: bool = _parameter(True, SHOWN, check_flag)
    truncate_prompt_tokens: int | None = _parameter(None, REQUEST, whole(1, LARGEST_LENGTH), plain_work=True)

    def __post_init__(self) -> None:
        for field in _FIELDS:
            object.__setattr__(self, field.name, field.metadata["check"](field.name, getattr(self, field.name)))
        if self.thinking_token_budget is not None and self.structured_outputs is not None:
            problem = "structured_outputs hold from the first token, and leave no place to think"
            raise ConfigError("thinking_token_budget", self.thinking_token_budget, problem, "Leave one of them out.")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            problem = f"above max_tokens={self.max_tokens}"
            raise ConfigError("min_tokens", self.min_tokens, problem, "Lower it, or raise max_tokens.")

    @staticmethod
    def from_mapping(values: Mapping[str, Any], **defaults: Any) -> SamplingParams:
        """Parameters by their names, as a configuration or a request names them; null is the default.

        Args:
            defaults: of what is not given.

        Raises:
            ConfigError: a name that is not known, or a value outside its range, under its key in a configuration.
        """
        for name, value in values.items():
            if name not in DEFAULTS:
                raise ConfigError(
                    f"sampler.{name}", value, "unknown parameter", f"Known are {', '.join(sorted(DEFAULTS))}."
                )
        try:
            return SamplingParams(
                **{**defaults, **{name: value for name, value in values.items() if value is not None}}
            )
        except ConfigError as error:  # which names an argument
            error.args, error.key = (f"sampler.{error}",), f"sampler.{error.key}"
            raise

    def check_length(self, most: int) -> None:
        """Checks them against the length of a text.

        Args:
            most: max_new_tokens, which max_tokens replaces.

        Raises:
            ConfigError: min_tokens above it.
        """
        if self.max_tokens is None and self.min_tokens > most:
            problem = f"above max_new_tokens={most}"
            raise ConfigError("sampler.min_tokens", self.min_tokens, problem, "Lower it, or raise max_new_tokens.")

    def ids_that_end(self, model_ids: frozenset[int]) -> frozenset[int]:
        """The ids that end a text; ``model_ids`` are the model's, which ``ignore_eos`` drops."""
        return (frozenset() if self.ignore_eos else model_ids) | frozenset(self.stop_token_ids)

    @property
    def numbers(self) -> dict[str, float]:
        """The numbers that traces and latency.parquet have by name; top_k is a whole number."""
        return {name: type(DEFAULTS[name])(getattr(self, name)) for name in RECORDED}

    @property
    def shaping(self) -> dict[str, Any]:
        """Those of SHAPING that are not off, by name: what changes logits, most of it by the text before a position."""
        changed = {name: getattr(self, name) for name in SHAPING if getattr(self, name) != DEFAULTS[name]}
        return {name: float(value) if name in PENALTIES else value for name, value in changed.items()}

    @property
    def token_rules(self) -> str:
        """Those of them that name tokens, as JSON; empty if there are none."""
        named = {name: value for name, value in self.shaping.items() if name in TOKEN_RULES}
        return json.dumps(named, sort_keys=True) if named else ""

    @property
    def further_truncations(self) -> dict[str, Any]:
        """Truncations beside ``numbers`` that are not off, by name."""
        further = {name: getattr(self, name) for name in TRUNCATIONS if name not in RECORDED}
        return {name: value for name, value in further.items() if value != DEFAULTS[name]}

    @property
    def beside_numbers(self) -> dict[str, Any]:
        """What changes a distribution beside ``numbers`` and is not off, by name; without processors and structures."""
        return self.shaping | self.further_truncations

    @property
    def shaping_text(self) -> str:
        """``beside_numbers`` as JSON; empty if there are none."""
        named = self.beside_numbers
        return json.dumps(named, sort_keys=True) if named else ""

    @property
    def structure(self) -> tuple[str, str] | None:
        """Kind and text of structured_outputs."""
        structure = self.structured_outputs
        return structure if isinstance(structure, tuple) else None  # a mapping is a pair since it was checked

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @property
    def truncates(self) -> bool:
        """Whether any token can be cut off, which is when a row needs a cutoff."""
        return not self.greedy and any(getattr(self, name) != DEFAULTS[name] for name in TRUNCATIONS)


_FIELDS = dataclasses.fields(SamplingParams)
DEFAULTS: dict[str, Any] = {field.name: field.default for field in _FIELDS}  # which switch a parameter off
BANS = tuple(field.name for field in _FIELDS if field.metadata["bans"])
PLAIN_WORK = tuple(field.name for field in _FIELDS if field.metadata["plain_work"])


def in_groups(*groups: str) -> tuple[str, ...]:
    """The names of the parameters of some groups, in the order of the fields."""
    return tuple(field.name for field in _FIELDS if field.metadata["group"] in groups)


TRUNCATIONS, PENALTIES, TOKEN_RULES = map(in_groups, (TRUNCATION, PENALTY, TOKEN_RULE))
NUMBERS = in_groups(TEMPERATURE, TRUNCATION)
SHAPING = in_groups(PENALTY, TOKEN_RULE, LIMIT)
# Of NUMBERS, the names that the formats of traces and of latency.parquet have by name.
RECORDED = ("temperature", "top_k", "top_p", "min_p")


def yaml_schema() -> type:
    """The parameters as a dataclass for OmegaConf: lists in the place of sequences."""
    hints, fields = get_type_hints(SamplingParams), []
    for field in _FIELDS:
        default = dataclasses.field(default_factory=list) if field.default == () else field.default
        fields.append((field.name, field.metadata["schema"] or hints[field.name], default))
    return dataclasses.make_dataclass("SamplerConfig", fields)


def processors_named(processors: Sequence[Any], params: SamplingParams) -> str:
    """What rows and traces call processors: JSON, with what the text has to be at its end; empty for none.

    Args:
        processors: each as ``sampler.processors`` names it.
        params: for their structured_outputs.
    """
    named = [*processors, *([] if params.structure is None else [{"structured_outputs": dict([params.structure])}])]
    return json.dumps(named, sort_keys=True, default=lambda value: type(value).__name__) if named else ""
