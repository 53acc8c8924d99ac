"""Are the tests themselves right? p-values of an exact verifier over many seeds must be uniform."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from specbench.exactness.evidence import ACCEPTANCE, JOINT, Evidence
from specbench.exactness.fixtures import small_fixtures
from specbench.exactness.statistics.small import SmallTier
from specbench.verifiers import Verifier

FIRST_SEED = 1_000_000  # added to the run's, so that no draw of the suite is seen again


@dataclass(frozen=True)
class PValue:
    """One test of one seed."""

    fixture: str
    test: str
    seed: int
    draws: int
    p_value: float


def p_values(
    verifier: Verifier, seeds: int, draws: int, seed: int, device: torch.device, seconds: float | int = 0
) -> list[PValue]:
    """The small fixtures' tests, over and over.

    Args:
        seeds: how often, at most.
        draws: steps a fixture each time.
        seconds: no further seed is begun after this long; 0 is no limit.
    """
    fixtures = [fixture.to(device) for fixture in small_fixtures()]
    started, found, chunk = time.perf_counter(), [], 32
    for number in range(seeds):
        if seconds and number and time.perf_counter() - started > seconds:
            break
        this = seed + FIRST_SEED + number
        tier = SmallTier(verifier, fixtures, this, device, Evidence(), chunk)
        tier.draw({fixture.name: draws for fixture in fixtures}, None)
        chunk = tier.chunk
        found += [
            PValue(row.fixture, row.test, this, row.draws, row.p_value)
            for row in tier.rows()
            if row.test in (JOINT, ACCEPTANCE)
        ]
    return found
