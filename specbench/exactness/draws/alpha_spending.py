"""What a run's allowed false alarm is spent on: looks at its tests, and bounds on the bias on small fixtures.

At each look Holm's procedure over all tests keeps its share. Flawed verifiers mostly fall at the first look; the look
at all draws has most of the false alarm, and the look at everything, calls of D too, has the rest. Bounds, from above
and from below, hold on all small fixtures together.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from specbench.core.machine.journal import Journal
from specbench.exactness.draws.probes import Probe
from specbench.exactness.evidence import Evidence
from specbench.exactness.results import ACCEPTANCE, FORM, HARD, JOINT, Row
from specbench.exactness.settings import Settings
from specbench.exactness.statistics.calls import call_bound
from specbench.exactness.statistics.g_tests import holm
from specbench.exactness.statistics.power import CONFIDENCE, detectable_tv, share_at_most, tv_upper_bound
from specbench.exactness.statistics.tally import Tally

LOCATING = 0.1  # share of the false alarm that is for bounds from below
LAST_LOOK = 0.6  # share of the rest that is for the look at all draws
LOOKS = ((0.001, 0.01), (0.01, 0.01), (0.1, 0.01), (1.0, LAST_LOOK))  # share of the draws, share of the false alarm
AGAIN, AT_LAST = 0.05, 0.22  # likewise, of a look at models made anew, and of the one at everything
TIMES_AGAIN = 3  # looks after the last, for models that the last one made anew
_LEAST_SEEN = len(LOOKS) + TIMES_AGAIN + 1  # times that a bound from below is looked at, a signal's moment among them


def last_alarm(settings: Settings, rows: Sequence[Row]) -> float:
    """The false alarm of one of several tests at the look at all draws, if none of the others rejects."""
    tests = sum(row.gates and row.test not in HARD for row in rows)
    return settings.false_alarm * (1 - LOCATING) * LAST_LOOK / max(1, tests)


class Looks:
    """The looks of one run, each of which replaces the ``rows`` of the evidence."""

    def __init__(self, settings: Settings, evidence: Evidence, journal: Journal, fixtures: int):
        self.settings, self.evidence, self.journal, self.fixtures = settings, evidence, journal, fixtures
        self._caught: dict[tuple[str, str], int] = {}

    def look(self, rows: Sequence[Row], part: float, drawn: int) -> None:
        """Takes all tests so far; ``part`` is of the false alarm."""
        gate = {row.key: row.p_value for row in rows if row.gates and row.test not in HARD}
        least = min(gate.values(), default=1.0)
        self.journal.note(draws=drawn, log10_p_value=math.log10(least) if least > 0 else None)
        alarm = self.settings.false_alarm * (1 - LOCATING) * part
        rejected = set(holm(gate, alarm))
        for row in rows:
            impossible = row.test in HARD and row.p_value == 0
            other_rule = row.test == ACCEPTANCE and row.p_value < alarm / self.fixtures
            if impossible or other_rule or row.key in rejected:
                self._caught.setdefault(row.key, row.draws)
        self.evidence.rows = [replace(row, rejected_at=self._caught.get(row.key)) for row in rows]

    @property
    def least_alarm(self) -> float:
        """The false alarm of a fixture's bound from below, each time that it is looked at."""
        return self.settings.false_alarm * LOCATING / self.fixtures / _LEAST_SEEN

    @property
    def doubt(self) -> float:
        """How often the bound of a fixture from above may be wrong."""
        return (1 - CONFIDENCE) / self.fixtures

    def conclude(self, probes: Mapping[str, Probe], seed: int) -> None:
        """Puts into the evidence what its tests could have seen and, unless it has a fault, bounds on the bias.

        Args:
            seed: of the run, from which sizes of calls follow.
        """
        evidence = self.evidence
        evidence.rows = [self._bounded(row) for row in evidence.rows]
        if evidence.fault is None:
            evidence.bounds = [
                probe.bound(self.doubt, self.least_alarm, self._counted(probe.tally))
                for probe in probes.values()
                if probe.tally.draws
            ]
            evidence.bounds = evidence.uncontradicted
            compared = [probes[bound.fixture].calls for bound in evidence.bounds if not bound.by_counts]
            evidence.calls = call_bound(compared, 1 - CONFIDENCE, seed)

    def _counted(self, tally: Tally) -> float | None:
        """The bound by counts alone; where the target allows one sequence, by how often there was another."""
        name, rows = tally.fixture.name, {row.key: row for row in self.evidence.rows}
        if (name, JOINT) in rows:
            return rows[name, JOINT].upper_bound
        if int((tally.fixture.p > 0).sum(dim=1).max()) > 1:
            return 1.0  # so few draws that no cell could be tested
        form = rows.get((name, FORM))
        return None if form is None else share_at_most(form.statistic, tally.draws, self.doubt)

    def _bounded(self, row: Row) -> Row:
        """Returns the row with what it could have seen, and its upper bound."""
        if row.test != JOINT or row.dof == 0:
            return row
        share = last_alarm(self.settings, self.evidence.rows)
        return replace(
            row,
            detectable=detectable_tv(row.draws, row.dof, self.settings.power, share),
            upper_bound=tv_upper_bound(row.statistic, row.dof, row.draws, 1 - self.doubt, row.untested),
        )
