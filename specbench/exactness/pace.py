"""How many requests of slow code fit into a time limit: by the Python calls that it makes for one, not by a clock.

So the numbers of a certificate follow from verifier, suite and seeds alone, however busy the machine is.
"""

from __future__ import annotations

from specbench.exactness.settings import MOST_DRAWS, Settings

# What a Python call of slow code is reckoned at, and a request of code that handles batches at once: ten times and more
# of what they take on a quiet machine.
SECONDS_A_CALL, SECONDS_A_REQUEST = 1e-4, 2e-5
FEWEST, _STEPS_A_PAIR = 2_000, 3  # requests of slow code in any time limit; steps of a pair and its share of twins
# Requests that locating thresholds takes on all small fixtures together, those that even the least effort takes, and
# the least effort (locate.py) with which it is begun.
LOCATING_REQUESTS, LEAST_REQUESTS, LEAST_EFFORT = 1_200_000, 150_000, 0.02
_SLOW = 0.1  # seconds a request, so reckoned, from which on there is no long use (interpreted kernels)
_HABITS_SECONDS, _COMPARED_SECONDS, _FEWEST_OF_HABITS = 0.5, 1.25, 8  # reckoned, for batches of slow code


class Pace:
    """Numbers of requests of one verifier.

    Args:
        settings: with the limits in seconds.
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
        """Pairs of successive steps."""
        fitting = max(FEWEST, self._fitting(self.settings.serial_seconds))
        return min(self.settings.serial_draws, fitting // _STEPS_A_PAIR)

    def draws(self, fixtures: int) -> int:
        """Requests on each of so many small fixtures."""
        return min(self.settings.draws, max(FEWEST, self._fitting(self.settings.seconds)) // fixtures)

    def _fitting(self, seconds: float | int) -> int:
        return int(seconds / self.seconds_a_request) if seconds else MOST_DRAWS
