"""Upper and lower bounds on the bias on small fixtures, which hold on all of them together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from specbench.exactness.evidence import FORM, HARD, JOINT, Bound, Evidence, Row
from specbench.exactness.probes import LOCATED, Probe, bound_of
from specbench.exactness.settings import Settings
from specbench.exactness.statistics.power import CONFIDENCE, detectable_tv, share_at_most, tv_upper_bound
from specbench.exactness.statistics.tally import Tally

LOCATING = 0.1  # share of the false alarm that is for bounds from below
LAST_LOOK = 0.6  # share of the rest that is for the look at all draws


@dataclass(frozen=True)
class SmallBounds:
    """Bounds of a run.

    Attributes:
        evidence: whose rows are read.
        fixtures: how many small fixtures there are.
    """

    settings: Settings
    evidence: Evidence
    fixtures: int

    @property
    def least_alarm(self) -> float:
        """The false alarm of a fixture's bound from below."""
        return self.settings.false_alarm * LOCATING / self.fixtures

    @property
    def doubt(self) -> float:
        """How often the bound of a fixture from above may be wrong."""
        return (1 - CONFIDENCE) / self.fixtures

    def of(self, probes: Mapping[str, Probe], tallies: Mapping[str, Tally]) -> list[Bound]:
        """Returns the bounds of the fixtures that were drawn on."""
        bounds = []
        for name, probe in probes.items():
            tally = tallies.get(name)
            if tally is None or tally.draws == 0:
                continue
            # What is held against its rule has the smaller of two bounds, each with half of the doubt.
            alpha = self.doubt if probe.method == LOCATED else self.doubt / 2
            counted = self._counted(name, tally) if probe.method != LOCATED else None
            bounds.append(bound_of(probe, tally.draws, alpha, self.least_alarm, counted))
        return bounds

    def _counted(self, name: str, tally: Tally) -> float | None:
        """The bound by counts alone; where the target allows one sequence, by how often there was another."""
        row = next((row for row in self.evidence.rows if row.key == (name, JOINT)), None)
        if row is not None:
            return self.bounded(row).upper_bound
        if int((tally.fixture.p > 0).sum(dim=1).max()) > 1:
            return 1.0  # so few draws that no cell could be tested
        impossible = next((row.statistic for row in self.evidence.rows if row.key == (name, FORM)), None)
        if impossible is None:
            return None
        return share_at_most(impossible, tally.draws, self.doubt / 2)

    def bounded(self, row: Row) -> Row:
        """Returns the row with what it could have seen, and its upper bound."""
        if row.test != JOINT or row.dof == 0:
            return row
        tests = max(1, sum(row.gates and row.test not in HARD for row in self.evidence.rows))
        share = self.settings.false_alarm * (1 - LOCATING) * LAST_LOOK / tests
        return replace(
            row,
            detectable=detectable_tv(row.draws, row.dof, self.settings.power, share),
            upper_bound=tv_upper_bound(row.statistic, row.dof, row.draws, 1 - self.doubt / 2, row.untested),
        )
