"""All that a run of the suite leaves of one verifier, from which its verdict and certificate are made."""

from dataclasses import dataclass, field, replace

from specbench.exactness.inputs.census import CensusRow
from specbench.exactness.results import ALL, LARGE, Bound, Failure, Habit, LongUseRow, Row, StratumRow
from specbench.exactness.statistics.calls import CallBound
from specbench.exactness.statistics.tally import Tally


@dataclass
class Evidence:
    """All that a verifier's run left.

    Attributes:
        rows: the tests.
        bounds: of the small fixtures.
        inputs: calls drawn from D, by stratum and together.
        inputs_seed: that they were drawn with.
        census: what was put before the verifier, by property of its arguments.
        refusals: its reasons for refusing calls of D, with how often.
        long_use: what many calls of one object changed; None if that was not run.
        habits: what its tokens depend on.
        tallies: the counts, by small fixture.
        unsupported: fixtures that the verifier refused, with its reason.
        fault: why it is broken; None if it is not.
        failure: the simplest request that shows a bias.
        calls: what the calls of small fixtures say that were compared request by request; None without one.
        batch: the largest batch of requests on small fixtures.
        cut: what the time was up for before all that was asked for was made.
        interrupted: how far the suite was when a signal ended it; None if none did.
        left_out: what D was drawn without, since the verifier does not take it.
        lossy_rule: whether its rule is declared lossy and has formulas, so that it can be held against these alone.
    """

    rows: list[Row] = field(default_factory=list)
    bounds: list[Bound] = field(default_factory=list)
    inputs: list[StratumRow] = field(default_factory=list)
    inputs_seed: int = 0
    census: list[CensusRow] = field(default_factory=list)
    refusals: dict[str, int] = field(default_factory=dict)
    long_use: LongUseRow | None = None
    habits: list[Habit] = field(default_factory=list)
    tallies: dict[str, Tally] = field(default_factory=dict)
    unsupported: dict[str, str] = field(default_factory=dict)
    fault: str | None = None
    failure: Failure | None = None
    calls: CallBound | None = None
    batch: int = 0
    seconds: float = 0.0
    cut: list[str] = field(default_factory=list)
    interrupted: str | None = None
    left_out: list[str] = field(default_factory=list)
    lossy_rule: bool = False

    def over(self, strata: str) -> StratumRow | None:
        """Calls of several strata together, ALL or LARGE; None if none was drawn."""
        return next((row for row in self.inputs if row.stratum == strata), None)

    @property
    def strata(self) -> list[StratumRow]:
        return [row for row in self.inputs if row.stratum not in (ALL, LARGE)]

    @property
    def rejected(self) -> list[Row]:
        """The tests that say the verifier is not lossless."""
        return [row for row in self.rows if row.gates and row.rejected_at is not None]

    @property
    def uncontradicted(self) -> list[Bound]:
        """The bounds without proofs that something contradicts.

        A proof is of code that does the same at every call: a request that differs from the model, a test that rejects
        the fixture, or any habit shows that it does not.
        """
        fixtures = {row.fixture for row in self.rejected} | {bound.fixture for bound in self.bounds if bound.differing}
        same = not any(habit.differing for habit in self.habits)
        return [replace(bound, proved=bound.proved and same and bound.fixture not in fixtures) for bound in self.bounds]
