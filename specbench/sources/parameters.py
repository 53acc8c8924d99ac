"""Checks of requests: which sampling parameters an engine can set, and which prompts a pair of models can read."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from specbench.core.errors import ConfigError
from specbench.core.sampling_params import DEFAULTS, SamplingParams
from specbench.sources.contract import TextRequest

if TYPE_CHECKING:  # it imports transformers, which takes seconds
    from specbench.models.loading import Pair

OF_REQUESTS = ("seed", "max_tokens")  # which TextRequest has itself


def unsupported_but(*supported: str) -> frozenset[str]:
    """The names of all sampling parameters but some."""
    return frozenset(DEFAULTS).difference(supported, OF_REQUESTS)


def check_supported(requests: Sequence[TextRequest], unsupported: Collection[str], engine: str) -> None:
    """Raises ConfigError for a request with a sampling parameter that the engine cannot set."""
    for request in requests:
        for name, value in active_params(request.sampling, sorted(unsupported)).items():
            problem = f"{engine} cannot set it, and prompt {request.prompt_id!r} asks for it"
            raise ConfigError(f"sampler.{name}", value, problem, "Leave it out, or use another source.")


def active_params(sampling: SamplingParams, names: Iterable[str] = DEFAULTS) -> dict[str, Any]:
    """The sampling parameters that are not off, by name."""
    values = {name: getattr(sampling, name) for name in names}
    return {name: value for name, value in values.items() if value != DEFAULTS[name]}


def prompt_ids(pair: Pair, request: TextRequest) -> tuple[int, ...]:
    """Returns the token ids of a request's prompt. Raises ConfigError unless the pair can read and continue them."""
    ids = tuple(pair.encode(request.prompt)) if request.token_ids is None else request.token_ids
    if not ids or len(ids) + request.max_new_tokens > pair.context:
        problem = f"it is empty, or with {request.max_new_tokens} tokens more than the {pair.context} that fit"
        raise ConfigError("prompt", request.prompt_id, problem, "Shorten it.")
    if max(ids) >= pair.vocab_size:
        problem = f"it has the id {max(ids)}, and the target has ids below {pair.vocab_size}"
        raise ConfigError("prompt", request.prompt_id, problem, "Encode it with the target's tokenizer.")
    return ids
