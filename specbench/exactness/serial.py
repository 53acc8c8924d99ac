"""Tests of what one step cannot show: coupling of successive steps and of neighbours, and vocabularies of real size."""

from __future__ import annotations

import time

import numpy as np
import torch
from torch import Tensor

from specbench.exactness.evidence import (
    LARGE_TESTS,
    LAST_FIRST,
    LAST_PIT,
    NEIGHBOURS,
    PIT,
    SUCCESSIVE,
    WITHIN,
    Row,
    Settings,
)
from specbench.exactness.fixtures import Fixture, small_fixtures
from specbench.exactness.pit import PitTable, first_and_last
from specbench.exactness.power import detectable_ks, ks_upper_bound
from specbench.exactness.small import BLOCKS, POSITION
from specbench.exactness.steps import verified_steps
from specbench.exactness.tests import ks_uniform, pair_g_test
from specbench.rng import Streams
from specbench.verifiers import Verifier

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
    firsts, lasts, nexts = [], [], []
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
        done += size
        chunk = min(chunk * 2, 2**15 if device.type == "cpu" else 2**20)
    first, last, following = (np.concatenate(each) for each in (firsts, lasts, nexts))
    pairs = {SUCCESSIVE: (first, following), LAST_FIRST: (last, following), NEIGHBOURS: (first[0::2], first[1::2])}
    return [_pair_row("serial", name, *values) for name, values in pairs.items()]


def large_rows(
    verifier: Verifier, fixture: Fixture, draws: int, seed: int, device: torch.device, settings: Settings
) -> list[Row]:
    """Randomised PIT of every emitted token on a vocabulary of real size.

    Args:
        draws: steps, cut to what ``settings.vocabulary_seconds`` allows.
    """
    table, generator = PitTable(fixture), torch.Generator(device).manual_seed(seed % 2**63)
    started, done, chunk = time.perf_counter(), 0, 4 if device.type == "cpu" else 256
    values: list[Tensor] = []
    limit = settings.vocabulary_seconds
    while done < draws and not (limit and done and time.perf_counter() - started > limit):
        size = min(chunk, draws - done)
        seeds = torch.arange(done, done + size, device=device) + (seed * BLOCKS + LARGE_SEEDS) % 2**62
        streams = Streams(seeds, torch.full_like(seeds, POSITION), fixture.gamma + 1)
        values.append(table.values(verified_steps(verifier, fixture, streams), generator).cpu())
        done += size
    drawn = torch.cat(values).numpy()
    share = settings.false_alarm / len(LARGE_TESTS)
    bonus = drawn[:, -1]
    rows = []
    for name, values_or_nan in ((PIT, drawn.flatten()), (LAST_PIT, bonus)):
        sample = values_or_nan[~np.isnan(values_or_nan)]
        distance, p_value = ks_uniform(sample)
        detectable, bound = detectable_ks(len(sample), settings.power, share), ks_upper_bound(distance, len(sample))
        rows.append(Row(fixture.name, name, done, distance, 0, p_value, None, "ks", detectable, bound, True))
    both = ~np.isnan(drawn[:, 1])
    return [*rows, _pair_row(fixture.name, WITHIN, drawn[both, 0], drawn[both, 1])]


def _pair_row(fixture: str, name: str, first: np.ndarray, second: np.ndarray) -> Row:
    kept = ~np.isnan(first) & ~np.isnan(second)
    test = pair_g_test(first[kept], second[kept])
    return Row(fixture, name, int(kept.sum()), test.statistic, test.dof, test.p_value, None, "-", None, None, True)
