"""Checks of arguments that several protocols take."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from specbench.errors import ConfigError
from specbench.replay.survival import LARGEST_GAMMA


def check_gammas(key: str, values: object, least: int = 0) -> list[int]:
    """A list of different draft lengths, at least ``least`` of them.

    Raises:
        ConfigError: anything else.
    """
    remedy = f"Give different whole numbers from 0 to {LARGEST_GAMMA}, such as [1,2,4]."
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise ConfigError(key, values, "not a list", remedy)
    gammas = list(values)
    wrong = [g for g in gammas if isinstance(g, bool) or not isinstance(g, int) or not 0 <= g <= LARGEST_GAMMA]
    if wrong or len(set(gammas)) < len(gammas) or len(gammas) < least:
        raise ConfigError(key, gammas, f"{wrong} are no draft lengths" if wrong else "empty or repeated", remedy)
    return gammas


def check_conditions(asked: Collection[str], own: Collection[str], protocol: str) -> None:
    """Raises ConfigError for a key on the command line that the protocol has conditions of its own for.

    Args:
        asked: keys that were given, such as "sampler.top_p".
        own: keys of the protocol's own, such as "sampler".
    """
    for key in sorted(asked):
        if key.partition(".")[0] in own:
            remedy = "Leave it out, or use protocol=exactness, which has a regime with the run's own."
            raise ConfigError(key, "...", f"protocol={protocol} has conditions of its own and would ignore it", remedy)
