"""Whether a trace is of the sampler that a replay asks for: one sampler's acceptance is not another's."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from specbench.core.errors import ConfigError
from specbench.replay.trace import Trace
from specbench.replay.values import SAMPLER, sampler_of


def check_sampler(
    trace: Trace, wanted: Mapping[str, float | int], path: str | Path, processors: str = "", shaping: str = ""
) -> None:
    """Raises ConfigError where the trace was sampled with another sampler than the one asked for."""
    if trace.identity.shaping != shaping:
        recorded, other = (json.loads(text or "{}") for text in (trace.identity.shaping, shaping))
        name = next(name for name in sorted({*recorded, *other}) if recorded.get(name) != other.get(name))
        raise ConfigError(
            f"sampler.{name}",
            other.get(name, "off"),
            f"the trace {path} was sampled with {name} {recorded.get(name, 'off')}",
            "Give the same to replay it, or record another trace.",
        )
    if trace.identity.processors != processors:
        raise ConfigError(
            "sampler.processors",
            processors or "[]",
            f"the trace {path} was sampled with {trace.identity.processors or 'none'}",
            "Name the same ones to replay it, or record another trace.",
        )
    recorded, other = trace.identity.sampler, sampler_of(wanted)
    if recorded["temperature"] == other["temperature"] == 0:
        return  # greedy, whatever else is said
    for name in SAMPLER:
        if recorded[name] != other[name]:
            raise ConfigError(
                f"sampler.{name}",
                wanted[name],
                f"the trace {path} was sampled with {name} {recorded[name]:g}, and one sampler's acceptance is not "
                "another's",
                f"Add sampler.{name}={recorded[name]:g} to replay it, or record another trace.",
            )
