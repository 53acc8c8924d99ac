"""Are the tests themselves right? p-values of an exact verifier over many seeds must be uniform.

Those of joint, acceptance and successive steps are. The smallest of several, times their number, and 1 / the largest
wealth of bets are small no more often than a uniform variable, and may be less often.
"""

from dataclasses import dataclass

import torch

from specbench.exactness.draws.probes import Probe
from specbench.exactness.draws.serial import serial_rows
from specbench.exactness.draws.small_pairs import SmallTier
from specbench.exactness.evidence import Evidence
from specbench.exactness.fixtures import small_fixtures
from specbench.exactness.inputs import STRATA
from specbench.exactness.results import ACCEPTANCE, FORM, JOINT
from specbench.exactness.trials.judge import CallsToDraw
from specbench.exactness.trials.run import run_trials
from specbench.rules.verifier import Verifier

FIRST_SEED = 1_000_000  # added to the run's, so that no draw of the suite is seen again
# Strata whose bets are repeated for every seed.
BET_ON = tuple(stratum for stratum in STRATA if stratum.name in ("small", "large batches"))
CALLS = 24  # of them


@dataclass(frozen=True)
class PValue:
    """One test of one seed."""

    fixture: str
    test: str
    seed: int
    draws: int
    p_value: float


def p_values(verifier: Verifier, seeds: int, draws: int, seed: int, device: torch.device) -> list[PValue]:
    """The tests of the small fixtures, of successive steps and of some strata of D, over and over.

    Args:
        seeds: how often.
        draws: steps a fixture each time, and pairs of successive steps on each of two.
    """
    fixtures = [fixture.to(device) for fixture in small_fixtures()]
    results = []
    for number in range(seeds):
        this = seed + FIRST_SEED + number
        probes = {fixture.name: Probe(verifier, fixture, 0.0) for fixture in fixtures}
        SmallTier(verifier, probes, this, device, Evidence()).draw(dict.fromkeys(probes, draws))
        tests = [row for probe in probes.values() for row in probe.rows()]
        rows = [row for row in tests if row.test in (JOINT, ACCEPTANCE)]
        rows += serial_rows(verifier, 2 * draws, this, device, 0)[0]
        rows += run_trials(verifier, CallsToDraw(this, device, CALLS, strata=BET_ON)).tests
        results += [PValue(row.fixture, row.test, this, row.draws, row.p_value) for row in rows if row.test != FORM]
    return results
