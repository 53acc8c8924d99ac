"""The statistical tier on small fixtures."""

from __future__ import annotations

import time

import torch
from jaxtyping import Int64
from torch import Tensor

from specbench.errors import ArgumentError
from specbench.exactness.evidence import ACCEPTANCE, FORM, JOINT, Evidence, Row
from specbench.exactness.fixtures import Fixture
from specbench.exactness.steps import verified_steps
from specbench.exactness.tally import Tally
from specbench.rng import Streams
from specbench.verifiers import Verifier

POSITION = 17  # of the first token that a step emits; any will do
FAR = 65_521  # how far behind it other requests' steps are: the second and third beyond 16 bits
BLOCKS = 2**40  # seeds between two runs' seeds: no two runs share a stream
# Steps in one batch: what a CPU's cache holds, and where a kernel's scan of the batch's layout is still short.
LARGEST = {"cpu": 2**17, "cuda": 2**16}
QUICK = 0.5  # seconds; a batch after one as quick is four times as large


def positions(seeds: Int64[Tensor, " B"]) -> Int64[Tensor, " B"]:
    """Where the requests' steps begin in their texts: a function of the seed, so that no result depends on batches."""
    return POSITION + FAR * (seeds % 3)


class SmallTier:
    """Draws steps on small fixtures side by side, on the same streams.

    Sharing the streams saves the most expensive part of a draw; tests of different fixtures are then dependent, which
    Holm's procedure allows.

    Args:
        chunk: steps in the first batch; later ones are larger while they are quick. ``chunk`` is then the last one's.
    """

    def __init__(
        self,
        verifier: Verifier,
        fixtures: list[Fixture],
        seed: int,
        device: torch.device,
        evidence: Evidence,
        chunk: int = 32,
    ):
        self.verifier, self.device, self.evidence = verifier, device, evidence
        self.tallies = {fixture.name: Tally(fixture, verifier.rule) for fixture in fixtures}
        self.width = max(fixture.gamma for fixture in fixtures) + 1
        self.first_seed = seed * BLOCKS % 2**62
        self.drawn = 0
        self.chunk = chunk

    def draw(self, wanted: dict[str, int], deadline: float | None) -> bool:
        """Draws until every fixture has as many steps as wanted; returns whether the deadline cut that short."""
        while True:
            open_ = {name: tally for name, tally in self.tallies.items() if tally.draws < wanted[name]}
            if not open_:
                return False
            if deadline is not None and self.drawn and time.perf_counter() > deadline:
                return True
            started = time.perf_counter()
            size = min(self.chunk, *(wanted[name] - tally.draws for name, tally in open_.items()))
            seeds = torch.arange(self.drawn, self.drawn + size, device=self.device) + self.first_seed
            streams = Streams(seeds, positions(seeds), self.width)
            for name, tally in open_.items():
                try:
                    tally.add(verified_steps(self.verifier, tally.fixture, streams))
                except ArgumentError as error:
                    self.evidence.unsupported[name] = str(error)
                    del self.tallies[name]
            self.drawn += size
            self._grow(time.perf_counter() - started)

    def _grow(self, seconds: float) -> None:
        """Larger batches while they are quick: a slow verifier stays near its deadline, a fast one wastes no time."""
        if seconds < QUICK:
            self.chunk = min(self.chunk * 4, LARGEST[self.device.type])

    def rows(self) -> list[Row]:
        """The tests of what was drawn so far."""
        rows = []
        for name, tally in self.tallies.items():
            joint, acceptance = tally.joint(), tally.acceptance()
            impossible = tally.num_malformed() + joint.forbidden
            rows.append(
                Row(name, FORM, tally.draws, float(impossible), 0, float(impossible == 0), None, "-", None, None, True)
            )
            if joint.dof:
                statistic, p = joint.statistic, joint.p_value
                rows.append(Row(name, JOINT, tally.draws, statistic, joint.dof, p, None, "tv", None, None, True))
            if acceptance is not None and acceptance.dof:
                statistic, p = acceptance.statistic, acceptance.p_value
                rows.append(
                    Row(name, ACCEPTANCE, tally.draws, statistic, acceptance.dof, p, None, "-", None, None, False)
                )
        return rows
