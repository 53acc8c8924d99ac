"""How hard the suite looks: its settings, and the suites that have names."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from specbench.core.checks import check_seconds, plain_number
from specbench.core.errors import ConfigError

MOST_DRAWS = 10**11  # more would not end


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How hard to look.

    Attributes:
        draws: steps on each small fixture.
        seconds: limit for the small fixtures together, as all that end in ``seconds``; 0 is no limit. Counts are fixed
            beforehand: fewer where the verifier makes so many Python calls a request that they would not fit. The clock
            ends only what takes longer still, and the certificate names it.
        locating_seconds: for finding the thresholds of code; code that is too slow is held against its rule alone.
        calls, input_seconds: calls drawn from the input distribution D, 0 for none, and the limit for them.
        serial_draws, serial_seconds: pairs of steps in the tests of successive steps; 0 draws skip them.
        false_alarm: chance that a verifier which is exact is rejected. (The tests of acceptance, which reject nothing
            but the name of its rule, have as much again.)
        power: with which the bias that a test is said to show is shown.
        use_calls, use_seconds: calls of one object in mixed shapes before its first requests are made again; 0: none.
        row_vocabulary, row_seconds: tokens of the pair of rows on which the law of a step is located; 0 skips it.
        call_seconds: after which a call of verify is stopped, and the verifier called broken; 0 is no limit.
        stop_when_caught: stop at the look at which something is rejected.
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
    row_vocabulary: int = 4_096
    row_seconds: float | int = 300
    false_alarm: float = 1e-6
    power: float = 0.99
    call_seconds: float | int = 60
    stop_when_caught: bool = True

    def __post_init__(self) -> None:
        for name in ("false_alarm", "power"):
            if not 0 < getattr(self, name) < 1:
                raise ConfigError(
                    f"protocol.{name}", getattr(self, name), "not inside (0, 1)", "Use a number inside it."
                )
        for name in vars(self):
            if name.endswith("seconds"):
                check_seconds(f"protocol.{name}", getattr(self, name))
        for name, fewest in (("draws", 1), ("calls", 0), ("serial_draws", 0), ("use_calls", 0), ("row_vocabulary", 0)):
            if not fewest <= getattr(self, name) <= MOST_DRAWS:
                raise ConfigError(
                    f"protocol.{name}", getattr(self, name), "no count of steps", f"Use {fewest} to {MOST_DRAWS:,}."
                )


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
        row_vocabulary=1_009,
        row_seconds=150,
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
        row_vocabulary=151_936,
        row_seconds=600,
    ),
}


def settings_of(suite: object, **given: Any) -> Settings:
    """The settings of a suite by name, with those given (not None) in the place of its own.

    Raises:
        ConfigError: no such suite, or a value that cannot work.
    """
    if not isinstance(suite, str) or suite not in SUITES:
        raise ConfigError("protocol.suite", suite, "no such suite", f"Use {', '.join(SUITES)}.")
    known = [setting.name for setting in fields(Settings)]
    whole = {setting.name for setting in fields(Settings) if setting.type == "int"}
    given = {name: plain_number(value) for name, value in given.items()}
    for name, value in given.items():
        if name not in known:
            raise ConfigError(f"protocol.{name}", value, "no setting of a suite", f"Use one of {', '.join(known)}.")
        kinds = (bool,) if name == "stop_when_caught" else (int,) if name in whole else (int, float)
        if value is not None and (not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds)):
            wanted = {"bool": "true or false", "int": "a whole number", "float": "a number"}[kinds[-1].__name__]
            raise ConfigError(f"protocol.{name}", value, f"not {wanted}", "See conf/protocol/exactness.yaml.")
    return replace(SUITES[suite], **{name: value for name, value in given.items() if value is not None})
