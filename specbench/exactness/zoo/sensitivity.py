"""Which test catches a flawed verifier, after how many requests?"""

from __future__ import annotations

import math
from dataclasses import dataclass

from specbench.exactness.draws.alpha_spending import last_alarm
from specbench.exactness.evidence import Evidence, Row
from specbench.exactness.settings import Settings
from specbench.exactness.statistics.power import needed_noncentrality
from specbench.rules.agreement import TOLERANCE

SEEN = 1e-4  # p-value from which the draws that a test needs are estimated
LOCATION = "location"  # the row of what was located, beside those of the tests


@dataclass(frozen=True)
class SensitivityRow:
    """What a test saw of a verifier.

    Attributes:
        fixture, test: as in exactness.evidence.Row; ``location`` is what was located of its thresholds.
        draws: steps taken.
        p_value: 0 or 1 for what was located.
        rejected_at: steps after which it was caught; None if it was not.
        needed: steps after which it would be caught with the power asked for; None if nothing was seen.
        gates: whether the test can reject the verifier, and not only the name of its rule.
    """

    fixture: str
    test: str
    draws: int
    p_value: float
    rejected_at: int | None
    needed: float | None
    gates: bool


def sensitivity(evidence: Evidence, settings: Settings) -> list[SensitivityRow]:
    """The tests, with the draws after which each would catch the verifier with the power asked for.

    What was located comes first, fixture by fixture; it needs as many requests as bring what may hide below it.
    """
    rows = []
    for bound in evidence.bounds:
        if bound.located is None:
            continue
        p_value, rejected_at, needed = 1.0, None, None
        if bound.least > TOLERANCE:
            p_value, rejected_at, needed = 0.0, bound.draws, -math.log(settings.false_alarm) / bound.located
        rows.append(SensitivityRow(bound.fixture, LOCATION, bound.draws, p_value, rejected_at, needed, gates=True))
    for row in evidence.rows:
        needed = _needed(row, settings.power, last_alarm(settings, evidence.rows))
        rows.append(SensitivityRow(row.fixture, row.test, row.draws, row.p_value, row.rejected_at, needed, row.gates))
    return rows


def _needed(row: Row, power: float, false_alarm: float) -> float | None:
    """From the excess of the statistic over its degrees of freedom, which grows with the draws in proportion."""
    if row.dof == 0:
        return float(row.draws) if row.rejected_at is not None else None
    if row.p_value > SEEN or row.statistic <= row.dof:
        return None
    wanted = needed_noncentrality(row.dof, power, false_alarm)
    return row.draws * wanted / (row.statistic - row.dof)
