"""Tests of what one step cannot show: are successive steps of a request, and those of other requests, independent?"""

from __future__ import annotations

import time

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from specbench.core.errors import ArgumentError
from specbench.core.rng import Streams
from specbench.exactness.fixtures import Fixture, small_fixtures
from specbench.exactness.results import FORM, LAST_FIRST, NEIGHBOURS, SUCCESSIVE, TWINS, Row
from specbench.exactness.settings import deadline_of
from specbench.exactness.statistics.cells import transform
from specbench.exactness.statistics.g_tests import GTest, pair_g_test
from specbench.exactness.steps import Steps, verified_steps
from specbench.exactness.streams import SERIAL, request_streams
from specbench.rules.verifier import Verifier

LARGEST = {"cpu": 2**15, "cuda": 2**20}  # requests in one batch
FIXTURES = ("chain", "idle")  # what couples accept tests shows on the first, what couples draws alone on the second
TWINS_SHARE = 0.5  # of the pairs, and of the time, that are for twins
_FLIPS = [*((1 << bit, 0) for bit in range(63)), *((0, 1 << bit) for bit in range(32))]  # of the seed, of the position
_LEAST = 100  # pairs of twins a bit: with fewer there is no test


def transforms(steps: Steps, generator: torch.Generator) -> Float64[Tensor, "B width"]:
    """Returns the probability integral transform of each token (statistics/cells.py); NaN where none was emitted.

    They are independent and uniform on (0, 1) if every token follows the target given what was emitted before it
    (Rosenblatt, "Remarks on a multivariate transformation", 1952). Ordered by log p/q, whatever favours drafted tokens
    or the residual moves them to one side. Rows of the last position, which have no q, are ordered by p.
    """
    p, q = steps.drawn.fixture.p, steps.drawn.fixture.q
    score = p.log()
    score[: len(q)] -= q.log()
    w = torch.rand(steps.tokens.shape, generator=generator, dtype=torch.float64, device=steps.tokens.device)
    rows = steps.rows.flatten()
    value = transform(p[rows], score[rows], steps.tokens.flatten(), w.flatten()).view_as(w)
    return torch.where(steps.emitted, value, torch.nan).clamp(max=1 - 2.0**-53)


class _Serial:
    def __init__(self, verifier: Verifier, fixture: Fixture, seed: int, device: torch.device):
        self.verifier, self.seed, self.device = verifier, seed, device
        self.fixture, self.name = fixture.to(device), f"serial {fixture.name}"
        self.generator = torch.Generator(device).manual_seed(seed % 2**63)
        self.steps_made, self.malformed, self.late = 0, 0, False

    def steps(self, streams: Streams) -> Steps:
        steps = verified_steps(self.verifier, self.fixture, streams)
        self.steps_made += len(steps.malformed)
        self.malformed += int(steps.malformed.sum())
        return steps

    def values(self, steps: Steps) -> tuple[np.ndarray, np.ndarray]:
        """Of the first and the last token of each step; uniform on (0, 1) if they are the target's."""
        values = transforms(steps, self.generator)
        last = ((~values.isnan()).sum(dim=1) - 1).clamp(min=0)
        return values[:, 0].cpu().numpy(), values.gather(1, last[:, None])[:, 0].cpu().numpy()

    def streams(self, first: int, size: int) -> Streams:
        streams = request_streams(self.seed, SERIAL + first, size, self.fixture.gamma + 1, self.device)
        # A step at the last position has none after it.
        return Streams(streams.seeds, streams.positions.clamp(max=2**32 - 256), streams.width)

    def successive(self, draws: int, deadline: float) -> list[Row]:
        done, chunk = 0, 32
        triples: list[np.ndarray] = []  # of the first and the last token of a step, and the first of the next
        neighbours: dict[int, list[np.ndarray]] = {}
        while done < draws:
            if done and time.perf_counter() > deadline:
                self.late = True
                break
            size = min(chunk, draws - done + (draws - done) % 2)
            streams = self.streams(done, size)
            one = self.steps(streams)
            positions = streams.positions + one.verification.num_accepted.clamp(0, self.fixture.gamma) + 1
            two = self.steps(Streams(streams.seeds, positions, streams.width))
            triples.append(np.stack([*self.values(one), self.values(two)[0]]))
            for distance, pairs in _neighbours(triples[-1][0]).items():
                neighbours.setdefault(distance, []).append(pairs)
            done += size
            chunk = min(chunk * 2, LARGEST[self.device.type])
        first, last, following = np.concatenate(triples, axis=1)
        pairs = [np.concatenate(arrays, axis=1) for arrays in neighbours.values()]
        tests = [pair_g_test(*table) for table in pairs if table.shape[1] >= _LEAST]
        return [
            self._row(SUCCESSIVE, done, [pair_g_test(first, following)]),
            self._row(LAST_FIRST, done, [pair_g_test(last, following)]),
            *([self._row(NEIGHBOURS, done, tests)] if tests else []),
        ]

    def twins(self, pairs: int, first: int, deadline: float) -> list[Row]:
        """Requests whose seeds or positions differ in one bit, which a generator of fewer bits takes for the same."""
        if pairs < _LEAST:
            return []
        values: list[tuple[np.ndarray, np.ndarray]] = []
        for number, (seed_flip, position_flip) in enumerate(_FLIPS):
            if number and time.perf_counter() > deadline:
                self.late = True
                return []  # too slow for all bits, so it is tested on none
            streams = self.streams(first + number * pairs, pairs)
            other = Streams(streams.seeds ^ seed_flip, streams.positions ^ position_flip, streams.width)
            one, two = (self.values(self.steps(noise))[0] for noise in (streams, other))
            values.append((one, two))
        tests = [pair_g_test(*columns) for columns in values]
        return [self._row(TWINS, pairs * len(tests), tests)]

    def _row(self, name: str, draws: int, tests: list[GTest]) -> Row:
        """The test of the smallest p-value, which counts as often as there are tests."""
        worst = min(tests, key=lambda test: test.p_value)
        return Row(self.name, name, draws, worst.statistic, worst.dof, min(1.0, len(tests) * worst.p_value))


def serial_rows(
    verifier: Verifier, draws: int, seed: int, device: torch.device, seconds: float | int
) -> tuple[list[Row], dict[str, str], bool]:
    """Tests pairs of steps that nothing should connect.

    Args:
        draws: pairs of successive steps, on both fixtures together; half as many of twins.
        seconds: at most this long; 0 is no limit.

    Returns:
        The tests, the verifier's reason for refusing a fixture, by name, and whether the time was up before all pairs.

    Raises:
        VerifierFault: as steps.verified_steps.
    """
    results: list[Row] = []
    refused: dict[str, str] = {}
    late = False
    chosen = [fixture for fixture in small_fixtures() if fixture.name in FIXTURES]
    for fixture in chosen:
        serial = _Serial(verifier, fixture, seed, device)
        pairs, time_each = max(1, draws // len(chosen)), seconds / len(chosen)
        of_a_bit = int(pairs * TWINS_SHARE) // len(_FLIPS)
        try:
            rows = serial.successive(pairs, deadline_of(time_each * (1 - TWINS_SHARE)))
            rows += serial.twins(of_a_bit, pairs, deadline_of(time_each * TWINS_SHARE))
        except ArgumentError as error:
            refused[serial.name] = str(error)
            continue
        late = late or serial.late
        results += [Row.of_failures(serial.name, FORM, serial.steps_made, serial.malformed), *rows]
    return results, refused, late


def _neighbours(first: np.ndarray) -> dict[int, np.ndarray]:
    """[2, pairs] of one batch, by distance 1, 2, 4, ... of their places; no request is in two pairs of a distance."""
    by_distance, distance = {}, 1
    while 2 * distance <= len(first):
        pairs = first[: len(first) // (2 * distance) * 2 * distance].reshape(-1, 2, distance)
        by_distance[distance] = pairs.transpose(1, 0, 2).reshape(2, -1)
        distance *= 2
    return by_distance
