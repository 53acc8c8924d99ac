"""Which sampling parameters an engine can set, and the refusal of requests that have others."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from specbench.core.errors import ConfigError
from specbench.core.sampling_params import DEFAULTS
from specbench.sources.contract import TextRequest

OF_REQUESTS = ("seed", "max_tokens")  # which TextRequest has itself


def unsupported_but(*supported: str) -> frozenset[str]:
    """The names of all sampling parameters but some."""
    return frozenset(DEFAULTS).difference(supported, OF_REQUESTS)


def check_supported(requests: Sequence[TextRequest], unsupported: Collection[str], engine: str) -> None:
    """Raises ConfigError for a request with a sampling parameter that the engine cannot set."""
    for request in requests:
        for name in sorted(unsupported):
            value = getattr(request.sampling, name)
            if value != DEFAULTS[name]:
                problem = f"{engine} cannot set it, and prompt {request.prompt_id!r} asks for it"
                raise ConfigError(f"sampler.{name}", value, problem, "Leave it out, or use another source.")


def given(request: TextRequest, names: Iterable[str]) -> dict[str, object]:
    """The sampling parameters of a request that are not off, by name."""
    values = {name: getattr(request.sampling, name) for name in names}
    return {name: value for name, value in values.items() if value != DEFAULTS[name]}
