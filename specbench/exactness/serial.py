"""Tests of what one step cannot show: coupling of successive steps and of neighbours, and vocabularies of real size.

On a real vocabulary the order along log p/q shows what favours drafted tokens or the residual, and nothing of mistakes
that depend on a token's number, as a tile that is never drawn from or a lane that is read twice. Two more tests are for
those.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from specbench.exactness.evidence import (
    FORM,
    LANES,
    LARGE_TESTS,
    LAST_FIRST,
    LAST_PIT,
    NEIGHBOURS,
    PIT,
    SERIAL_TESTS,
    SUCCESSIVE,
    TILES,
    WITHIN,
    Row,
    Settings,
)
from specbench.exactness.fixtures import Fixture, small_fixtures
from specbench.exactness.pit import PitTable, first_and_last
from specbench.exactness.power import detectable_ks, ks_upper_bound
from specbench.exactness.small import BLOCKS, POSITION
from specbench.exactness.steps import Steps, verified_steps
from specbench.exactness.tests import GTest, ks_uniform, node_g_test, pair_g_test
from specbench.rng import Streams
from specbench.verifiers import Verifier

TILE, NUM_LANES = 1024, 32  # the tiles that kernels read a row in, and what the lanes of a warp read
SERIAL_SEEDS, LARGE_SEEDS = BLOCKS // 4, BLOCKS // 2  # where their seeds begin, behind those of the small fixtures


def serial_rows(verifier: Verifier, draws: int, seed: int, device: torch.device, seconds: float | int) -> list[Row]:
    """Two successive steps of each request: are their tokens independent, and those of neighbours in the batch?

    Args:
        draws: requests.
        seconds: at most this long; 0 is no limit.
    """
    fixture = small_fixtures()[0].to(device)
    table, generator = PitTable(fixture), torch.Generator(device).manual_seed(seed % 2**63)
    started, done, chunk = time.perf_counter(), 0, 32
    firsts, lasts, nexts, malformed = [], [], [], 0
    while done < draws and not (seconds and done and time.perf_counter() - started > seconds):
        size = min(chunk, draws - done + (draws - done) % 2)
        seeds = torch.arange(done, done + size, device=device) + (seed * BLOCKS + SERIAL_SEEDS) % 2**62
        positions = torch.full_like(seeds, POSITION)
        one = verified_steps(verifier, fixture, Streams(seeds, positions, fixture.gamma + 1))
        positions = positions + one.verification.num_accepted + 1
        two = verified_steps(verifier, fixture, Streams(seeds, positions, fixture.gamma + 1))
        first, last = first_and_last(table.values(one, generator))
        following, _ = first_and_last(table.values(two, generator))
        firsts.append(first.cpu().numpy())
        lasts.append(last.cpu().numpy())
        nexts.append(following.cpu().numpy())
        malformed += int(one.malformed.sum() + two.malformed.sum())
        done += size
        chunk = min(chunk * 2, 2**15 if device.type == "cpu" else 2**20)
    first, last, following = (np.concatenate(each) for each in (firsts, lasts, nexts))
    pairs = {SUCCESSIVE: (first, following), LAST_FIRST: (last, following), NEIGHBOURS: (first[0::2], first[1::2])}
    return [_form_row("serial", done, malformed), *(_pair_row("serial", name, *each) for name, each in pairs.items())]


def large_rows(
    verifier: Verifier, fixture: Fixture, draws: int, seed: int, device: torch.device, settings: Settings
) -> list[Row]:
    """Every emitted token on a vocabulary of real size: randomised PIT, and counts by number.

    Args:
        draws: steps, cut to what ``settings.vocabulary_seconds`` allows.
    """
    table, generator = PitTable(fixture), torch.Generator(device).manual_seed(seed % 2**63)
    started, done = time.perf_counter(), 0
    chunk = max(4, (2**19 if device.type == "cpu" else 2**25) // fixture.vocabulary)
    values: list[Tensor] = []
    grids = {TILES: _Grid(fixture, lambda ids: ids // TILE), LANES: _Grid(fixture, lambda ids: ids % NUM_LANES)}
    malformed = torch.zeros((), dtype=torch.int64, device=device)
    limit = settings.vocabulary_seconds
    while done < draws and not (limit and done and time.perf_counter() - started > limit):
        size = min(chunk, draws - done)
        seeds = torch.arange(done, done + size, device=device) + (seed * BLOCKS + LARGE_SEEDS) % 2**62
        streams = Streams(seeds, torch.full_like(seeds, POSITION), fixture.gamma + 1)
        steps = verified_steps(verifier, fixture, streams)
        values.append(table.values(steps, generator).cpu())
        malformed += steps.malformed.sum()
        for grid in grids.values():
            grid.add(steps)
        done += size
    drawn = torch.cat(values).numpy()
    # As one of the last to be looked at by Holm's procedure.
    share = settings.false_alarm * 0.97 / (len(LARGE_TESTS) + len(SERIAL_TESTS) + len(small_fixtures()))
    bonus = drawn[:, -1]
    rows = [_form_row(fixture.name, done, int(malformed))]
    for name, grid in grids.items():
        test = grid.test()
        rows.append(Row(fixture.name, name, done, test.statistic, test.dof, test.p_value, None, "-", None, None, True))
    for name, values_or_nan in ((PIT, drawn.flatten()), (LAST_PIT, bonus)):
        sample = values_or_nan[~np.isnan(values_or_nan)]
        distance, p_value = ks_uniform(sample)
        detectable, bound = detectable_ks(len(sample), settings.power, share), ks_upper_bound(distance, len(sample))
        rows.append(Row(fixture.name, name, done, distance, 0, p_value, None, "ks", detectable, bound, True))
    both = ~np.isnan(drawn[:, 1])
    return [*rows, _pair_row(fixture.name, WITHIN, drawn[both, 0], drawn[both, 1])]


class _Grid:
    """Counts of emitted tokens by table row and a class of their ids."""

    def __init__(self, fixture: Fixture, class_of: Callable[[Tensor], Tensor]):
        ids = class_of(torch.arange(fixture.vocabulary, device=fixture.p.device))
        self.class_of, self.classes = class_of, int(ids.max()) + 1
        self.probs = torch.zeros((len(fixture.p), self.classes), dtype=torch.float64, device=fixture.p.device)
        self.probs.index_add_(1, ids, fixture.p)
        self.counts = torch.zeros(self.probs.numel(), dtype=torch.int64, device=fixture.p.device)

    def add(self, steps: Steps) -> None:
        cells = (steps.rows * self.classes + self.class_of(steps.tokens))[steps.emitted]
        self.counts += torch.bincount(cells, minlength=len(self.counts))

    def test(self) -> GTest:
        """Are the classes distributed at each row as the target's tokens are?"""
        return node_g_test(self.counts.view(self.probs.shape).cpu().numpy(), self.probs.cpu().numpy())


def _form_row(fixture: str, draws: int, malformed: int) -> Row:
    return Row(fixture, FORM, draws, float(malformed), 0, float(malformed == 0), None, "-", None, None, True)


def _pair_row(fixture: str, name: str, first: np.ndarray, second: np.ndarray) -> Row:
    kept = ~np.isnan(first) & ~np.isnan(second)
    test = pair_g_test(first[kept], second[kept])
    return Row(fixture, name, int(kept.sum()), test.statistic, test.dof, test.p_value, None, "-", None, None, True)
