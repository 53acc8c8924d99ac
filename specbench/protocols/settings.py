"""Checks of arguments that several protocols take, and of what a protocol would silently ignore."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from specbench.core.checks import check_count, plain_number
from specbench.core.conf import config_name
from specbench.core.errors import ConfigError
from specbench.core.sampling_params import DEFAULTS, END, REQUEST, SHOWN, SamplingParams, in_groups
from specbench.protocols.protocol import MeasurementProtocol
from specbench.replay.survival import LARGEST_GAMMA

OF_MODELS = ("pair", "drafter", "engine", "parallel", "workload", "max_new_tokens")
NO_MODEL = "It loads no model; leave it out."
# By field of SamplingParams, what to do instead.
Ignored = Mapping[str, str]
NO_TEXTS: Ignored = dict.fromkeys(in_groups(END, REQUEST, SHOWN), "It decodes no text of yours; leave it out.")
NOTHING_SHOWN: Ignored = dict.fromkeys(in_groups(SHOWN), "It shows no text; leave it out, or use protocol=decode.")
OWN_SAMPLES: Ignored = {**NOTHING_SHOWN, "n": "Use protocol.samples."}
NOTHING: Ignored = {}
NO_SOURCE = "It samples from no engine under test; leave it out, or use protocol=judge."


def check_gammas(key: str, values: object, least: int = 0) -> list[int]:
    """A list of different draft lengths, at least ``least`` of them.

    Raises:
        ConfigError: anything else.
    """
    return _different(key, values, least, 0, LARGEST_GAMMA)


def check_drafting(key: str, gammas: list[int], remedy: str = "Add one above 0, or give [] for none.") -> list[int]:
    """The draft lengths, if there are none or one is above 0. Raises ConfigError for [0]."""
    if gammas == [0]:
        raise ConfigError(key, gammas, "none of them drafts", remedy)
    return gammas


def check_chance(key: str, value: object, remedy: str = "Use a number inside it.") -> float:
    """The number, as Python's own. Raises ConfigError for anything but one inside (0, 1)."""
    value = plain_number(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1:
        raise ConfigError(key, value, "not inside (0, 1)", remedy)
    return float(value)


def check_decoded(gammas: object, decoded: object, done: str) -> tuple[list[int], list[int]]:
    """The draft lengths of protocol.gammas, and those of protocol.decoded, which are some of them.

    Args:
        done: what is done with all of them, such as "replayed".

    Raises:
        ConfigError: anything else.
    """
    lengths, chosen = check_gammas("protocol.gammas", gammas, 1), check_gammas("protocol.decoded", decoded, 1)
    if missing := set(chosen) - set(lengths):
        remedy = "Add them to protocol.gammas, or leave them out."
        raise ConfigError("protocol.decoded", chosen, f"{sorted(missing)} are not {done}", remedy)
    return lengths, chosen


def check_counts(key: str, values: object, least: int = 1) -> list[int]:
    """A list of different counts, in order.

    Raises:
        ConfigError: anything else.
    """
    return sorted(_different(key, values, 1, least))


def _different(key: str, values: object, fewest: int, *bounds: int) -> list[int]:
    """The numbers of a list. Raises ConfigError for no list, too few numbers, equal ones, or one out of bounds."""
    remedy = f"Give different whole numbers from {' to '.join(map(str, bounds))}, such as [1,2,4]."
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise ConfigError(key, values, "not a list", remedy)
    numbers = [check_count(key, value, *bounds) for value in values]
    if len(set(numbers)) < len(numbers) or len(numbers) < fewest:
        raise ConfigError(key, numbers, "empty or repeated", remedy)
    return numbers


def unused(protocol: MeasurementProtocol) -> dict[str, str | None]:
    """The keys that a protocol makes no use of, with what to know instead (see MeasurementProtocol)."""
    ignored = dict(getattr(protocol, "own_conditions", {}))
    if not getattr(protocol, "reads_source", False):
        ignored = {"source": NO_SOURCE, **ignored}
    return ignored if protocol.needs_models else {**dict.fromkeys(OF_MODELS, NO_MODEL), **ignored}


def unused_of_lines(protocol: MeasurementProtocol) -> dict[str, str | None]:
    """The same of what a line of a workload may have of its own: its gamma too, if the protocol drafts nothing."""
    return {**({} if getattr(protocol, "drafts", True) else {"gamma": None}), **unused(protocol)}


def check_conditions(values: Mapping[str, str], ignored: Mapping[str, str | None], protocol: str) -> None:
    """Refuses a command line that asks for what the protocol would ignore.

    Args:
        values: by key, such as "sampler.top_p".
        ignored: what ``unused`` returns.
        protocol: its name.

    Raises:
        ConfigError: names the key, its value, and what to do instead.
    """
    for key, value in sorted(values.items()):
        remedy = ignored.get(key.partition(".")[0])
        if remedy is not None:
            raise ConfigError(key, value, f"protocol={protocol} would ignore it", remedy)


def check_parameters(sampling: SamplingParams, protocol: Any) -> None:
    """Refuses sampling parameters that the protocol would ignore.

    Raises:
        ConfigError: names the parameter, its value, and what to do instead.
    """
    nothing_said = NOTHING_SHOWN if protocol.needs_models else NO_TEXTS
    for name, remedy in getattr(protocol, "ignored_parameters", nothing_said).items():
        value = getattr(sampling, name)
        searched = name == "skip_special_tokens" and sampling.stop  # stop strings are looked for in the text as shown
        if value != DEFAULTS[name] and not searched:
            problem = f"protocol={config_name('protocol', protocol)} would ignore it"
            raise ConfigError(f"sampler.{name}", list(value) if isinstance(value, tuple) else value, problem, remedy)
