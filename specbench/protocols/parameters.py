"""Sampling parameters that a protocol makes no use of: it refuses them by name, so that none is silently ignored."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from specbench.core.conf import config_name
from specbench.core.errors import ConfigError
from specbench.core.sampling_params import SamplingParams

_ENDS = ("stop", "stop_token_ids", "ignore_eos", "max_tokens")
_REQUESTS = ("n", "seed", "truncate_prompt_tokens")
_SHOWN = ("include_stop_str_in_output", "skip_special_tokens", "logprobs", "prompt_logprobs", "logprobs_mode")

# By field of SamplingParams, what to do instead.
Ignored = Mapping[str, str]
NO_TEXTS: Ignored = dict.fromkeys((*_ENDS, *_REQUESTS, *_SHOWN), "It decodes no text of yours; leave it out.")
NOTHING_SHOWN: Ignored = dict.fromkeys(_SHOWN, "It shows no text; leave it out, or use protocol=decode.")
OWN_SAMPLES: Ignored = {**NOTHING_SHOWN, "n": "Use protocol.samples."}
NOTHING: Ignored = {}


@runtime_checkable
class OwnParameters(Protocol):
    """A protocol that says which sampling parameters it makes no use of.

    Attributes:
        ignored_parameters: by name, what to do instead. A protocol that says nothing ignores how texts are shown, and
            one without models all that concerns texts.
    """

    ignored_parameters: Ignored


def ignored_by(protocol: Any) -> Ignored:
    """The sampling parameters that a protocol makes no use of, each with what to do instead."""
    if isinstance(protocol, OwnParameters):
        return protocol.ignored_parameters
    return NOTHING_SHOWN if protocol.needs_models else NO_TEXTS


def check_parameters(sampling: SamplingParams, protocol: Any) -> None:
    """Refuses sampling parameters that the protocol would ignore.

    Raises:
        ConfigError: names the parameter, its value, and what to do instead.
    """
    defaults = {each.name: each.default for each in dataclasses.fields(sampling)}
    for name, remedy in ignored_by(protocol).items():
        value = getattr(sampling, name)
        searched = name == "skip_special_tokens" and sampling.stop  # stop strings are looked for in the text as shown
        if value != defaults[name] and not searched:
            problem = f"protocol={config_name('protocol', protocol)} would ignore it"
            raise ConfigError(f"sampler.{name}", list(value) if isinstance(value, tuple) else value, problem, remedy)
