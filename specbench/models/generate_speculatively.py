"""The speculative methods of transformers' ``generate``, with what each step drafted and accepted."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerBase

from specbench.core.errors import ConfigError
from specbench.core.sampling_params import SamplingParams
from specbench.models.checkpoint import Checkpoint
from specbench.models.generate import constant, run
from specbench.models.loading import Pair

ASSISTED, LOOKUP, EARLY_EXIT, TOKENIZERS = METHODS = ("assisted", "prompt_lookup", "early_exit", "different_tokenizers")
NEEDING_DRAFT = (ASSISTED, TOKENIZERS)


@dataclass
class StepCounts:
    """What the steps of one text drafted and accepted."""

    steps: int = 0
    drafted: int = 0
    accepted: int = 0


@dataclass(frozen=True)
class Method:
    """How to speculate.

    Attributes:
        name: one of METHODS.
        layers: of the target that draft, for early_exit.
        max_ngram_size: the longest match, for prompt_lookup.
        draft_tokenizer: for different_tokenizers.
    """

    name: str
    gamma: int
    layers: int | None = None
    max_ngram_size: int = 2
    draft_tokenizer: PreTrainedTokenizerBase | None = None


def draft_tokenizer(key: str, draft: str, download: bool) -> PreTrainedTokenizerBase:
    """The tokenizer of a draft checkpoint. Raises ConfigError."""
    return Checkpoint.opened(key, draft, download).tokenizer


def sample_plainly(
    pair: Pair, prompt: Sequence[int], sampling: SamplingParams, max_new_tokens: int, seed: int
) -> list[int]:
    """The tokens of one text, without speculation."""
    return run(pair, [prompt], sampling, max_new_tokens, seed, {}, {})[0]


def sample_speculatively(
    pair: Pair, prompt: Sequence[int], sampling: SamplingParams, max_new_tokens: int, seed: int, method: Method
) -> tuple[list[int], StepCounts]:
    """The tokens of one text with speculation, and what its steps counted.

    Raises:
        ConfigError: an early exit behind the target's last layer.
    """
    arguments: dict[str, Any] = {}  # not settings, which the model keeps while it drafts for itself
    if method.name == LOOKUP:
        arguments |= {"prompt_lookup_num_tokens": method.gamma, "max_matching_ngram_size": method.max_ngram_size}
    elif method.name == EARLY_EXIT:
        layers = pair.target.config.get_text_config().num_hidden_layers
        if method.layers is None or not 1 <= method.layers < layers:
            raise ConfigError("source.layers", method.layers, f"the target has {layers}", f"Use 1 to {layers - 1}.")
        arguments["assistant_early_exit"] = method.layers
    else:
        arguments["assistant_model"] = pair.draft
    if method.name == TOKENIZERS:
        arguments |= {"tokenizer": pair.tokenizer, "assistant_tokenizer": method.draft_tokenizer}
    counts = StepCounts()
    with _counting(pair.target, counts):
        return run(pair, [prompt], sampling, max_new_tokens, seed, constant(method.gamma), arguments)[0], counts


@contextmanager
def _counting(target: Any, counts: StepCounts) -> Generator[None]:
    """Counts the steps, drafted and accepted tokens of the candidate generators that ``target`` makes."""
    make = target._get_candidate_generator

    def counted(*args: Any, **kwargs: Any) -> Any:
        generator = make(*args, **kwargs)
        propose, update = generator.get_candidates, generator.update_candidate_strategy

        def get_candidates(input_ids: Any, *args: Any, **kwargs: Any) -> Any:
            ids, logits = propose(input_ids, *args, **kwargs)
            counts.steps += 1
            counts.drafted += ids.shape[1] - input_ids.shape[1]
            return ids, logits

        def update_candidate_strategy(input_ids: Any, scores: Any, num_matches: int) -> Any:
            counts.accepted += int(num_matches)
            return update(input_ids, scores, num_matches)

        generator.get_candidates, generator.update_candidate_strategy = get_candidates, update_candidate_strategy
        return generator

    target._get_candidate_generator = counted
    try:
        yield
    finally:
        del target._get_candidate_generator
