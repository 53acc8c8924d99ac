"""The suite: every test of a verifier, composed so that one number bounds the chance of a false alarm.

Tests look at the counts after a thousandth, a hundredth, a tenth and all of the draws. Flawed verifiers mostly fall at
the first look, and the last one has nearly all of the allowed false alarm. At each look Holm's procedure over the
family of tests keeps its share.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import torch

from specbench.errors import ArgumentError
from specbench.exactness import serial
from specbench.exactness.evidence import (
    ACCEPTANCE,
    EXTREMES,
    HARD,
    JOINT,
    LARGE_TESTS,
    SERIAL_TESTS,
    Evidence,
    Row,
    Settings,
)
from specbench.exactness.fixtures import Fixture, greedy_fixture, large_fixture, small_fixtures
from specbench.exactness.injection import extreme_failures, takes_injected_uniforms
from specbench.exactness.power import CONFIDENCE, detectable_tv, draws_needed, tv_upper_bound
from specbench.exactness.small import SmallTier
from specbench.exactness.tally import joint_dof
from specbench.exactness.tests import holm
from specbench.verifiers import Verifier

LOOKS = ((0.001, 0.01), (0.01, 0.01), (0.1, 0.01), (1.0, 0.97))  # share of the draws, share of the false alarm
FIRST_LOOK = 10_000  # draws; earlier the chi-square limit is far
GREEDY_DRAWS = 10_000


def family_size(settings: Settings) -> int:
    """Tests that share the false alarm."""
    return (
        len(small_fixtures())
        + (len(SERIAL_TESTS) if settings.serial_draws else 0)
        + (len(LARGE_TESTS) if settings.vocabulary else 0)
    )


def planned_draws(fixture: Fixture, settings: Settings) -> int:
    """Steps on a small fixture."""
    if settings.draws:
        return settings.draws
    share = settings.false_alarm * LOOKS[-1][1] / family_size(settings)
    return draws_needed(settings.detectable_tv, joint_dof(fixture), settings.power, share)


def examine(
    verifier: Verifier,
    settings: Settings,
    seed: int,
    device: torch.device,
    report: Callable[[str], None] = lambda _: None,
) -> Evidence:
    """Runs the suite.

    Args:
        seed: of the run; request seeds follow from it and never overlap with another run's.
        report: told what is being done.
    """
    started = time.perf_counter()
    evidence = Evidence()
    fixtures = [fixture.to(device) for fixture in small_fixtures()]
    plan = {fixture.name: planned_draws(fixture, settings) for fixture in fixtures}
    extra = _extra_tests(verifier, settings, seed, device, evidence, report)
    small = SmallTier(verifier, fixtures, seed, device, evidence)
    caught: dict[tuple[str, str], int] = {}
    begun = time.perf_counter()
    for share, part in LOOKS:
        wanted = {name: max(int(draws * share), min(FIRST_LOOK, draws)) for name, draws in plan.items()}
        report(f"{max(wanted.values()):,} draws a fixture")
        evidence.cut |= small.draw(wanted, _deadline(small, plan, settings, begun))
        last = share == 1.0 or evidence.cut
        rows = [*small.rows(), *extra]
        gate = {_key(row): row.p_value for row in rows if row.gates and row.test not in HARD}
        alarm = settings.false_alarm * (part if not evidence.cut else LOOKS[-1][1])
        rejected = {name: None for name in holm(gate, alarm)}
        for row in rows:
            if (row.test in HARD and row.p_value == 0) or (
                row.test == ACCEPTANCE and row.p_value < alarm / len(fixtures)
            ):
                rejected[_key(row)] = None
        for key in rejected:
            caught.setdefault(key, next(row.draws for row in rows if _key(row) == key))
        evidence.rows = [replace(row, rejected_at=caught.get(_key(row))) for row in rows]
        if last or (settings.stop_when_caught and evidence.rejected):
            break
    evidence.rows = [_bounded(row, settings, len(gate)) for row in evidence.rows]
    evidence.tallies = small.tallies
    evidence.seconds = time.perf_counter() - started
    return evidence


def _deadline(small: SmallTier, plan: dict[str, int], settings: Settings, begun: float) -> float | None:
    """When to stop drawing: where the plan would try the patience, after ``seconds``."""
    if settings.patience == 0:
        return None
    if small.drawn >= FIRST_LOOK:
        projected = (time.perf_counter() - begun) * max(plan.values()) / small.drawn
        if projected <= settings.patience:
            return None
    return begun + settings.seconds


def _key(row: Row) -> tuple[str, str]:
    return row.fixture, row.test


def _bounded(row: Row, settings: Settings, tests: int) -> Row:
    """With what it could have seen, and with an upper bound that holds on all small fixtures together."""
    if row.test != JOINT or row.dof == 0:
        return row
    confidence = 1 - (1 - CONFIDENCE) / len(small_fixtures())
    share = settings.false_alarm * LOOKS[-1][1] / tests
    return replace(
        row,
        detectable=detectable_tv(row.draws, row.dof, settings.power, share),
        upper_bound=tv_upper_bound(row.statistic, row.dof, row.draws, confidence),
    )


def _extra_tests(
    verifier: Verifier,
    settings: Settings,
    seed: int,
    device: torch.device,
    evidence: Evidence,
    report: Callable[[str], None],
) -> list[Row]:
    """The tests of successive steps, of the large vocabulary and of temperature 0."""
    rows = []
    if settings.serial_draws:
        report("successive steps")
        budget = 0.2 * settings.seconds if settings.patience else 0.0
        rows += _guarded(
            evidence, "serial", lambda: serial.serial_rows(verifier, settings.serial_draws, seed, device, budget)
        )
    if settings.vocabulary:
        report(f"{settings.vocabulary:,} tokens")
        fixture = large_fixture(settings.vocabulary).to(device)
        rows += _guarded(
            evidence,
            fixture.name,
            lambda: serial.large_rows(verifier, fixture, settings.vocabulary_draws, seed, device, settings),
        )
    rows += _guarded(evidence, EXTREMES, lambda: _extremes(verifier, device))
    greedy = greedy_fixture().to(device)
    tally = SmallTier(verifier, [greedy], seed, device, evidence)
    tally.draw(
        {greedy.name: GREEDY_DRAWS}, time.perf_counter() + 0.05 * settings.seconds if settings.patience else None
    )
    return [*rows, *(row for row in tally.rows() if row.test in HARD)]


def _extremes(verifier: Verifier, device: torch.device) -> list[Row]:
    fixtures = [fixture.to(device) for fixture in (*small_fixtures(), greedy_fixture())]
    if not takes_injected_uniforms(verifier, fixtures[0]):
        return []
    found = [extreme_failures(verifier, fixture) for fixture in fixtures]
    calls, failures = (sum(each) for each in zip(*found, strict=True))
    return [Row("all", EXTREMES, calls, float(failures), 0, float(failures == 0), None, "-", None, None, True)]


def _guarded(evidence: Evidence, name: str, rows: Callable[[], list[Row]]) -> list[Row]:
    try:
        return rows()
    except ArgumentError as error:
        evidence.unsupported[name] = str(error)
        return []
