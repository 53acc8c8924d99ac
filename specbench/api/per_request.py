"""Arguments with a value for each request: a single value holds for all, and of several each request has its own."""

from collections.abc import Iterable, Mapping, Sized
from collections.abc import Set as AbstractSet
from typing import Any

import numpy as np
from torch import Tensor

from specbench.core.checks import check_count
from specbench.core.errors import ArgumentError
from specbench.core.machine.provenance import request_seed
from specbench.core.sampling_params import LARGEST_SEED, SamplingParams
from specbench.replay.survival import LARGEST_GAMMA

Samplings = SamplingParams | Iterable[SamplingParams] | None
Seeds = int | Iterable[int]
_SAMPLING = "specbench.SamplingParams(...), or None"


def entries(name: str, values: Any, form: str) -> list[Any]:
    """The entries of a list, an array, or any other iterable that has an order.

    Args:
        form: what to give instead, in words.

    Raises:
        ArgumentError: no such iterable. A set has no order, and a text or a mapping is no list of values.
    """
    unordered = isinstance(values, str | bytes | Mapping | AbstractSet) or not isinstance(values, Iterable)
    if unordered or getattr(values, "ndim", 1) == 0:
        raise ArgumentError(f"{name}: a {type(values).__name__}; give {form}")
    return list(values)


def single_sampling(sampling: SamplingParams | None) -> SamplingParams:
    """The sampling parameters of a function that takes one for all requests. Raises ArgumentError for anything else."""
    if not isinstance(sampling, SamplingParams | None):
        raise ArgumentError(f"sampling: a {type(sampling).__name__}; give {_SAMPLING}")
    return sampling or SamplingParams()


def refuse_history(name: str, params: SamplingParams, remedy: str) -> None:
    """Raises ArgumentError for sampling parameters that depend on the text, which a function without texts ignores."""
    parts = {"processors": params.processors, "structured_outputs": params.structured_outputs, **params.shaping}
    if parameter := next((key for key, value in parts.items() if value), None):
        raise ArgumentError(f"{name}.{parameter}: needs the text before each position; {remedy}")


def samplings_of(name: str, samplings: Samplings, count: int, requests: str) -> list[SamplingParams]:
    """The sampling parameters of each request.

    Args:
        requests: what the function calls its requests ("prompts").

    Raises:
        ArgumentError: too few or too many, or something else.
    """
    if samplings is None or isinstance(samplings, SamplingParams):
        return [samplings or SamplingParams()] * count
    items = entries(name, samplings, _SAMPLING)
    for i, params in enumerate(items):
        if not isinstance(params, SamplingParams):
            raise ArgumentError(f"{name}[{i}]: a {type(params).__name__}; give {_SAMPLING}")
    check_length(name, items, count, requests)
    return items


def seeds_of(seed: Seeds, prompts: int) -> list[int]:
    """The seeds of the prompts. From one number each prompt gets its own, by its place; a list is taken as it is.

    Raises:
        ArgumentError: too few or too many.
        ConfigError: one outside 0 to 2^63 - 1.
    """
    numbers = _numbers("seed", seed, prompts)
    if isinstance(numbers, list):
        return [check_count("seed", number, 0, LARGEST_SEED) for number in numbers]
    return derived_seeds(check_count("seed", numbers, 0, LARGEST_SEED), prompts)


def derived_seeds(seed: int, count: int) -> list[int]:
    """A seed for each request: two requests of one seed would draw the same random numbers at the same position."""
    return [request_seed(seed, str(i)) for i in range(count)]


def gammas_of(gamma: int | Iterable[int], prompts: int) -> list[int]:
    """The gammas of the prompts.

    Raises:
        ArgumentError: too few or too many numbers.
        ConfigError: a gamma that is no whole number from 0 to LARGEST_GAMMA.
    """
    numbers = _numbers("gamma", gamma, prompts)
    values = numbers if isinstance(numbers, list) else [numbers] * prompts
    return [check_count("gamma", value, 0, LARGEST_GAMMA) for value in values]


def check_length(name: str, values: Sized, count: int, requests: str) -> None:
    """Raises ArgumentError unless there is a value for each request."""
    if len(values) != count:
        raise ArgumentError(f"{name}: {len(values)} for {count} {requests}; give one, or one for each")


def _numbers(name: str, values: Any, prompts: int) -> Any:
    """Something iterable as a list with an entry for each prompt, and anything else as it is."""
    if isinstance(values, np.ndarray | Tensor):
        values = values.tolist()
    if isinstance(values, str) or not isinstance(values, Iterable):
        return values
    items = entries(name, values, "one number, or one for each")
    check_length(name, items, prompts, "prompts")
    return items
