"""What a run of the suite is asked and what it leaves."""

from __future__ import annotations

from dataclasses import dataclass, field

from specbench.errors import ConfigError
from specbench.exactness.tally import Tally

JOINT, ACCEPTANCE, FORM, EXTREMES = "joint", "acceptance", "form", "extremes"
HARD = (FORM, EXTREMES)  # one failure rejects; they have no false alarm
SUCCESSIVE, LAST_FIRST, NEIGHBOURS = "successive steps", "last and next", "neighbours"
PIT, LAST_PIT, WITHIN = "pit", "pit of bonus", "within a step"
TILES, LANES = "tiles of ids", "lanes of ids"
SERIAL_TESTS, LARGE_TESTS = (SUCCESSIVE, LAST_FIRST, NEIGHBOURS), (PIT, LAST_PIT, WITHIN, TILES, LANES)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How hard to look.

    Attributes:
        detectable_tv: bias of a step, in total variation and averaged over a fixture's requests, that every small
            fixture shows with probability ``power``.
        power: see there.
        false_alarm: chance that a verifier which is exact is rejected. (The tests of acceptance, which reject nothing
            but the name of its rule, have as much again.)
        draws: steps on each small fixture; 0 takes them from the three numbers above.
        patience: seconds that the small fixtures may take together; 0 is no limit. A verifier that would take longer,
            as its first draws show, gets ``seconds`` instead, and its bounds are those of the draws that fit.
        seconds: see there.
        serial_draws: pairs of steps in the test of successive steps; 0 skips it.
        vocabulary: tokens of the large fixture; 0 skips it.
        vocabulary_draws: steps on it.
        vocabulary_seconds: at most this long on it; 0 is no limit.
        stop_when_caught: stop at the look at which something is rejected.
    """

    detectable_tv: float = 1e-3
    power: float = 0.99
    false_alarm: float = 1e-6
    draws: int = 0
    patience: float | int = 0
    seconds: float | int = 30
    serial_draws: int = 1_000_000
    vocabulary: int = 151_936
    vocabulary_draws: int = 20_000
    vocabulary_seconds: float | int = 15
    stop_when_caught: bool = False

    def __post_init__(self) -> None:
        for name in ("detectable_tv", "power", "false_alarm"):
            if not 0 < getattr(self, name) < 1:
                raise ConfigError(
                    f"protocol.{name}", getattr(self, name), "not inside (0, 1)", "Use a number inside it."
                )
        for name in (
            "draws",
            "patience",
            "seconds",
            "serial_draws",
            "vocabulary",
            "vocabulary_draws",
            "vocabulary_seconds",
        ):
            if getattr(self, name) < 0:
                raise ConfigError(f"protocol.{name}", getattr(self, name), "below 0", "Use 0 for the default meaning.")
        if 0 < self.vocabulary < 100:
            raise ConfigError(
                "protocol.vocabulary", self.vocabulary, "not large", "Use 100 to 200000, or 0 to skip it."
            )


@dataclass(frozen=True)
class Row:
    """One test of one fixture.

    Attributes:
        fixture, test: joint, acceptance and form on small fixtures; those of serial.py beside them.
        draws: steps taken.
        statistic, dof: G and its degrees of freedom, or Kolmogorov's distance and 0.
        p_value: of the last look.
        rejected_at: draws at the look that rejected it; None where none did.
        detectable: the smallest distance (``distance``: tv or ks) shown with the power asked for.
        upper_bound: 99% upper confidence bound on that distance, on all small fixtures together.
        gates: whether its rejection says that the verifier is not lossless (acceptance: that it is another rule).
    """

    fixture: str
    test: str
    draws: int
    statistic: float
    dof: int
    p_value: float
    rejected_at: int | None
    distance: str
    detectable: float | None
    upper_bound: float | None
    gates: bool


@dataclass
class Evidence:
    """All that a verifier's run left.

    Attributes:
        rows: the tests.
        tallies: the counts, by small fixture.
        unsupported: fixtures that the verifier refused, with its reason.
        seconds: how long the tests took.
        cut: whether ``seconds`` cut the draws.
    """

    rows: list[Row] = field(default_factory=list)
    tallies: dict[str, Tally] = field(default_factory=dict)
    unsupported: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    cut: bool = False

    @property
    def rejected(self) -> list[Row]:
        """The tests that say the verifier is not lossless."""
        return [row for row in self.rows if row.gates and row.rejected_at is not None]

    @property
    def first_caught(self) -> Row | None:
        """The gating test that needed the fewest draws, the one of the smallest p-value among equals."""
        return min(self.rejected, key=lambda row: (row.rejected_at or 0, row.p_value), default=None)
