"""How hard the suite looks: its settings, the suites that have names, and what fits into their limits of time."""

import math
import time
from dataclasses import dataclass, fields, replace
from typing import Any

from specbench.core.checks import check_chance, check_count, check_flag, check_seconds
from specbench.core.errors import ConfigError

MOST_DRAWS = 10**11  # more would not end
# What a Python call of slow code is reckoned at, and a request of code that handles batches at once: ten times and more
# of what they take on a quiet machine.
SECONDS_A_CALL, SECONDS_A_REQUEST = 1e-4, 2e-5
FEWEST, _STEPS_A_PAIR = 2_000, 3  # requests of slow code in any time limit; steps of a pair and its share of twins
# Requests that locating thresholds takes on all small fixtures together, those that even the least effort takes, and
# the least effort (locate.py) with which it is begun.
LOCATING_REQUESTS, LEAST_REQUESTS, LEAST_EFFORT = 1_200_000, 150_000, 0.02
_SLOW = 0.1  # seconds a request, so reckoned, from which on there is no long use (interpreted kernels)
_HABITS_SECONDS, _COMPARED_SECONDS, _FEWEST_OF_HABITS = 0.5, 1.25, 8  # reckoned, for batches of slow code


def _checked(name: str, value: Any) -> Any:
    """The value of a setting, as Python's own."""
    key = f"protocol.{name}"
    if name.endswith("seconds"):
        return check_seconds(key, value)
    if name in ("draws", "calls", "serial_draws", "use_calls"):
        return check_count(key, value, 1 if name == "draws" else 0, MOST_DRAWS)
    return check_flag(key, value) if name == "stop_when_caught" else check_chance(key, value)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How hard to look.

    Attributes:
        draws: steps on each small fixture.
        seconds: limit for the small fixtures together, as all that end in ``seconds``; 0 is no limit. Counts are fixed
            beforehand: fewer where the Python calls that the verifier makes a request would not fit. The clock
            ends only what takes longer still, and the certificate names it.
        locating_seconds: for finding the thresholds of code; code that is too slow is held against its rule alone.
        calls, input_seconds: calls drawn from the input distribution D, 0 for none, and the limit for them.
        serial_draws, serial_seconds: pairs of steps in the tests of successive steps; 0 draws skip them.
        false_alarm: chance that a verifier which is exact is rejected. (The tests of acceptance, which reject nothing
            but the name of its rule, have as much again.)
        power: with which the bias that a test is said to show is shown.
        use_calls, use_seconds: calls of one object in mixed shapes before its first requests are made again; 0: none.
        call_seconds: after which a call of verify is stopped, and the verifier called broken; 0 is no limit.
        stop_when_caught: stop at the look at which something is rejected.

    Raises:
        ConfigError: a value that cannot work.
    """

    draws: int = 1_500_000
    seconds: float | int = 1500
    locating_seconds: float | int = 600
    calls: int = 30_000
    input_seconds: float | int = 1800
    serial_draws: int = 300_000
    serial_seconds: float | int = 300
    use_calls: int = 100_000
    use_seconds: float | int = 600
    false_alarm: float = 1e-6
    power: float = 0.99
    call_seconds: float | int = 60
    stop_when_caught: bool = True

    def __post_init__(self) -> None:
        for setting in fields(self):
            object.__setattr__(self, setting.name, _checked(setting.name, getattr(self, setting.name)))


SUITES = {
    "quick": Settings(
        draws=200_000,
        seconds=600,
        locating_seconds=300,
        calls=1_600,
        input_seconds=600,
        serial_draws=50_000,
        serial_seconds=150,
        use_calls=10_000,
        use_seconds=300,
    ),
    "default": Settings(),
    "deep": Settings(
        draws=100_000_000,
        seconds=0,
        locating_seconds=3000,
        calls=1_000_000,
        input_seconds=3600,
        serial_draws=4_000_000,
        serial_seconds=0,
        use_calls=1_000_000,
        use_seconds=600,
    ),
}


def deadline_of(seconds: float | int) -> float:
    """Returns when a time limit ends, by ``time.perf_counter``; 0 seconds is no limit."""
    return time.perf_counter() + (seconds or math.inf)


def settings_of(suite: object, **given: Any) -> Settings:
    """The settings of a suite by name, with those given (not None) in the place of its own.

    Raises:
        ConfigError: no such suite, or a value that cannot work.
    """
    if not isinstance(suite, str) or suite not in SUITES:
        raise ConfigError("protocol.suite", suite, "no such suite", f"Use {', '.join(SUITES)}.")
    known = [setting.name for setting in fields(Settings)]
    for name, value in given.items():
        if name not in known:
            raise ConfigError(f"protocol.{name}", value, "no setting of a suite", f"Use one of {', '.join(known)}.")
    return replace(SUITES[suite], **{name: _checked(name, value) for name, value in given.items() if value is not None})


class RequestBudget:
    """How many requests of a verifier fit into the limits: by the Python calls that it makes for one, not by a clock.

    So the numbers of a certificate follow from verifier, suite and seeds alone, however busy the machine is.

    Args:
        calls: Python calls that the verifier makes for a request; None if it refuses all small fixtures.
    """

    def __init__(self, settings: Settings, calls: float | None = None):
        self.settings = settings
        self.seconds_a_request = max(SECONDS_A_REQUEST, SECONDS_A_CALL * (calls or 0.0))

    @property
    def slow(self) -> bool:
        """Whether long use would take hours."""
        return self.seconds_a_request >= _SLOW

    @property
    def of_habits(self) -> int:
        """Requests of a batch on which habits show."""
        return max(_FEWEST_OF_HABITS, self._fitting(_HABITS_SECONDS))

    @property
    def compared(self) -> int:
        """Requests that are compared with those of other rules."""
        return self._fitting(_COMPARED_SECONDS)

    @property
    def effort(self) -> float:
        """How thoroughly thresholds can be looked for, as in locate(); 0 if not at all."""
        effort = (self._fitting(self.settings.locating_seconds) - LEAST_REQUESTS) / LOCATING_REQUESTS
        return min(1.0, effort) if effort > LEAST_EFFORT else 0.0

    @property
    def pairs(self) -> int:
        fitting = max(FEWEST, self._fitting(self.settings.serial_seconds))
        return min(self.settings.serial_draws, fitting // _STEPS_A_PAIR)

    def draws(self, fixtures: int) -> int:
        """Requests on each small fixture, if there are ``fixtures`` of them."""
        return min(self.settings.draws, max(FEWEST, self._fitting(self.settings.seconds)) // fixtures)

    def _fitting(self, seconds: float | int) -> int:
        return int(seconds / self.seconds_a_request) if seconds else MOST_DRAWS
