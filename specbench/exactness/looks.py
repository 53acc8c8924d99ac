"""Looks at the tests of a run: at each, Holm's procedure over all tests keeps its share of the allowed false alarm.

Flawed verifiers mostly fall at the first look; the look at all draws has most of the false alarm, and the look at
everything, calls of D too, has the rest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from specbench.core.machine.journal import Journal
from specbench.exactness.evidence import ACCEPTANCE, HARD, Evidence, Row
from specbench.exactness.settings import Settings
from specbench.exactness.small_bounds import LAST_LOOK, LOCATING
from specbench.exactness.statistics.tests import holm

LOOKS = ((0.001, 0.01), (0.01, 0.01), (0.1, 0.01), (1.0, LAST_LOOK))  # share of the draws, share of the false alarm
AGAIN, AT_LAST = 0.05, 0.22  # likewise, of the looks at models made anew, and of the one at everything


class Looks:
    """The looks of one run.

    Args:
        settings: with the allowed false alarm.
        evidence: whose ``rows`` each look replaces.
        journal: gets the smallest p-value of each look.
        fixtures: how many small fixtures there are.
    """

    def __init__(self, settings: Settings, evidence: Evidence, journal: Journal, fixtures: int):
        self.settings, self.evidence, self.journal, self.fixtures = settings, evidence, journal, fixtures
        self._caught: dict[tuple[str, str], int] = {}

    def look(self, rows: Sequence[Row], part: float, drawn: int) -> None:
        """Takes all tests so far.

        Args:
            part: of the false alarm.
            drawn: requests on each small fixture.
        """
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
