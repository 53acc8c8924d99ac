"""The suite: every test of a verifier, composed so that one number bounds the chance of a false alarm.

On small fixtures tests look at the counts after a thousandth, a hundredth, a tenth and all of the draws. Flawed
verifiers mostly fall at the first look, and the last one has most of the allowed false alarm; the look at everything,
calls of D too, has the rest. At each look Holm's procedure over the family of tests keeps its share. What a look found
otherwise than foreseen is followed up before the next.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from specbench.core.errors import ArgumentError
from specbench.core.machine.journal import Journal
from specbench.exactness import watch
from specbench.exactness.certificate.verdict import names_another_rule
from specbench.exactness.differential import first_divergence, followed_rule
from specbench.exactness.enumeration.injection import (
    Point,
    calls_a_request,
    extreme_failures,
    takes_injected_uniforms,
)
from specbench.exactness.enumeration.reference import held_against
from specbench.exactness.enumeration.row import locate_row
from specbench.exactness.evidence import ACCEPTANCE, EXTREMES, HARD, Evidence, Row, uncontradicted
from specbench.exactness.examples import simplest_failure
from specbench.exactness.fixtures import Fixture, greedy_fixture, small_fixtures
from specbench.exactness.habits import habits
from specbench.exactness.inputs import Takes
from specbench.exactness.long_use import LongUse, unused_copy
from specbench.exactness.probes import Probe
from specbench.exactness.sampled_failure import failure_of
from specbench.exactness.settings import MOST_DRAWS, Settings
from specbench.exactness.small_bounds import LAST_LOOK, LOCATING, SmallBounds
from specbench.exactness.statistics.calls import call_bound
from specbench.exactness.statistics.power import CONFIDENCE
from specbench.exactness.statistics.serial import serial_rows
from specbench.exactness.statistics.small import SmallTier
from specbench.exactness.statistics.tests import holm
from specbench.exactness.trials import Configured, Trials, run_trials
from specbench.rules.agreement import TOLERANCE
from specbench.rules.rule import rule_of
from specbench.rules.verifier import Verifier

LOOKS = ((0.001, 0.01), (0.01, 0.01), (0.1, 0.01), (1.0, LAST_LOOK))  # share of the draws, share of the false alarm
AGAIN, AT_LAST = 0.05, 0.22  # likewise, of the looks at models made anew, and of the one at everything
FIRST_LOOK = 10_000  # draws; earlier the chi-square limit is far
FEWEST, _STEPS_A_PAIR = 2_000, 3  # requests of slow code in any time limit; steps of a pair and its share of twins
# Requests that locating thresholds takes on all small fixtures together, those that even the least effort takes, and
# the least effort (locate.py) with which it is begun.
LOCATING_REQUESTS, LEAST_REQUESTS, LEAST_EFFORT = 1_200_000, 150_000, 0.02
# What a Python call of slow code is reckoned at, and a request of code that handles batches at once: ten times and more
# of what they take on a quiet machine. How many requests fit into a time limit follows from these and not from a clock.
SECONDS_A_CALL, SECONDS_A_REQUEST = 1e-4, 2e-5
_SLOW = 0.1  # seconds a request, so reckoned, from which on there is no long use (interpreted kernels)
_HABITS_SECONDS, _COMPARED_SECONDS = 0.5, 1.25  # reckoned, for batches of slow code in these parts
_FOR_NEW_MODELS = 0.2  # of the time, if less is left
_AGAIN = 3  # looks after the last, for models that the last one made anew
_ROW_ON_A_GPU = 151_936  # tokens; a CPU takes minutes for as many
_SMALL, _THRESHOLDS, _PAIRS = "requests on small pairs", "the search for thresholds", "pairs of successive steps"
_IN_COMPANY = ("ragged", "mixed")  # fixtures whose requests differ within a batch, on which habits show


def examine(
    verifier: Any,
    settings: Settings,
    seed: int,
    device: torch.device,
    inputs_seed: int = 0,
    configured: Configured | None = None,
    report: Callable[[str], None] = lambda _: None,
    stuck: Callable[[Evidence], None] | None = None,
    journal: Journal | None = None,
) -> Evidence:
    """Runs the suite.

    Args:
        verifier: under test: whatever somebody means to be a Verifier.
        seed: of the run; request seeds follow from it and never overlap with another run's.
        inputs_seed: of the calls drawn from D; none are drawn if a test on small fixtures has rejected the verifier.
        configured: the conditions of a run, from which calls are drawn as well.
        report: told what is being done.
        stuck: gets the evidence so far, from another thread, if a call of the verifier never returns and cannot be
            interrupted; it should save it and end the process.
        journal: gets the smallest p-value of each look.
    """
    evidence = Evidence(inputs_seed=inputs_seed)
    examination = _Examination(verifier, settings, seed, device, evidence, report, journal or Journal())

    def hanging(fault: watch.VerifierFault) -> None:
        evidence.fault = str(fault)
        if device.type == "cpu":  # counts on a device that hangs cannot be read
            examination.conclude()
        assert stuck is not None
        stuck(evidence)

    started = time.perf_counter()
    try:
        watch.check_attributes(verifier)
        with watch.call_limit(settings.call_seconds, None if stuck is None else hanging):
            examination.run(configured)
            examination.finish()
    except watch.VerifierFault as fault:
        evidence.fault = str(fault)
        examination.finish()
    evidence.seconds = time.perf_counter() - started
    return evidence


class _Examination:
    def __init__(
        self,
        verifier: Any,
        settings: Settings,
        seed: int,
        device: torch.device,
        evidence: Evidence,
        report: Callable[[str], None],
        journal: Journal,
    ):
        self.verifier, self.settings, self.seed, self.device = verifier, settings, seed, device
        self.evidence, self.report, self.journal = evidence, report, journal
        self.fixtures = [fixture.to(device) for fixture in (*small_fixtures(), greedy_fixture())]
        self.bounds = SmallBounds(settings, evidence, len(self.fixtures))
        self.probes: dict[str, Probe] = {}
        self.small: SmallTier | None = None
        self.extremes: list[Point] = []
        self.extra: list[Row] = []
        self.caught: dict[tuple[str, str], int] = {}
        self.trials: Trials | None = None
        self.use: LongUse | None = None
        self.unused: Verifier | None = None
        self.seconds_a_request = SECONDS_A_REQUEST

    def run(self, configured: Configured | None) -> None:
        """Everything, the quick parts first; evidence is complete after each, as far as it goes."""
        self.report("what its tokens depend on, and where its thresholds are")
        self.unused = unused_copy(self.verifier) if self.settings.use_calls else None
        calls = self._first(calls_a_request)
        self.seconds_a_request = max(SECONDS_A_REQUEST, SECONDS_A_CALL * (calls or 0.0))
        if self.settings.use_calls and self.seconds_a_request < _SLOW:
            self.use = LongUse(self.verifier, self.unused, self.fixtures, self.seed, self.device)
        injectable = self._injectable()
        company = [fixture for fixture in self.fixtures if fixture.name in _IN_COMPANY]
        self.evidence.habits = habits(self.verifier, company, injectable, self.seed, self._fitting(_HABITS_SECONDS, 8))
        effort = self._effort() if injectable else 0.0
        deadline = _deadline(self.settings.locating_seconds)
        for fixture in self.fixtures:
            self._guarded(fixture.name, lambda fixture=fixture: self._begin(fixture, injectable, effort, deadline))
        self._cut(_THRESHOLDS, any(probe.late for probe in self.probes.values()))
        self._serial()
        self._draw()
        if self.settings.calls and not (self.settings.stop_when_caught and self.rejected):
            self._draw_from_d(configured)
        if not (self.settings.stop_when_caught and self.rejected):
            self._locate_a_row()
            self._use_for_long()
        self._look(AT_LAST)

    def _draw_from_d(self, configured: Configured | None) -> None:
        self.report(f"{self.settings.calls:,} calls drawn from D")
        arguments = (self.settings.calls, self.settings.input_seconds, self.evidence.inputs_seed, self.device)
        patience = 4 * self.settings.call_seconds  # a call may be made three times
        self.trials = run_trials(
            self.verifier, *arguments, configured, self.report, patience=patience, unused=self.unused
        )
        self.evidence.inputs, self.evidence.refusals = self.trials.rows, self.trials.refusals
        self.evidence.census = list(self.trials.census.rows())
        self.evidence.left_out = Takes.of(self.verifier).left_out
        self._cut("calls of D", self.trials.cut)
        self.extra += self.trials.tests

    def _locate_a_row(self) -> None:
        rule, vocabulary = held_against(self.verifier), self.settings.row_vocabulary
        if rule is None or not vocabulary or not self._injectable():
            return
        if self.device.type == "cuda":
            vocabulary = max(vocabulary, _ROW_ON_A_GPU)
        self.report(f"the law of a step for one pair of rows of {vocabulary:,} tokens")
        arguments = (vocabulary, self.evidence.inputs_seed, self.device, self.settings.row_seconds)
        with contextlib.suppress(ArgumentError):  # a refusal of such a request is among those of D
            self.evidence.row = locate_row(self.verifier, rule, *arguments)

    def _use_for_long(self) -> None:
        if self.use is None:
            return
        self.report("one object in long use")
        self._cut("calls in long use", self.use.exercise(self.settings.use_calls, self.settings.use_seconds))
        self.evidence.long_use = self.use.compare()

    def conclude(self) -> None:
        """What follows from the counts, without another call of the verifier."""
        if self.evidence.fault is not None:  # the look that it cut short
            self._look(AT_LAST)
        self.evidence.rows = [self.bounds.bounded(row) for row in self.evidence.rows]
        if self.small is not None:
            self.evidence.tallies = {name: tally for name, tally in self.small.tallies.items() if tally.draws}

    def finish(self) -> None:
        """What only needs to be done once."""
        self.conclude()
        if self.evidence.fault is None:
            bounds = uncontradicted(
                self.bounds.of(self.probes, {} if self.small is None else self.small.tallies),
                self.evidence.rejected,
                self.evidence.habits,
            )
            compared = [self.probes[bound.fixture].calls for bound in bounds if not bound.by_counts]
            self.evidence.bounds, self.evidence.calls = bounds, call_bound(compared, 1 - CONFIDENCE)
        if self.evidence.fault is None and names_another_rule(self.evidence):
            arguments = (self.fixtures, self.seed, self.device, self._fitting(_COMPARED_SECONDS))
            with contextlib.suppress(watch.VerifierFault):  # of code that does otherwise now
                self.evidence.fork = first_divergence(self.verifier, rule_of(self.verifier), *arguments)
                self.evidence.follows = followed_rule(self.verifier, *arguments)
        if self.evidence.fault is None and (self.rejected or names_another_rule(self.evidence)):
            with contextlib.suppress(ArgumentError, watch.VerifierFault):  # of code that does otherwise now
                failure = simplest_failure(self.verifier, self.evidence, self.probes, self.extremes, self.unused)
                self.evidence.failure = failure or (
                    None if self.trials is None else failure_of(self.verifier, self.trials, self.unused)
                )

    @property
    def rejected(self) -> bool:
        """Whether anything says that the verifier is not lossless."""
        least = (probe.least(self.bounds.least_alarm) for probe in self.probes.values())
        return bool(self.evidence.rejected) or any(value > TOLERANCE for value in least)

    def _first(self, run: Callable[[Any, Fixture], Any]) -> Any:
        """What ``run`` returns on the first fixture that the verifier does not refuse; None if it refuses all."""
        for fixture in self.fixtures:
            with contextlib.suppress(ArgumentError):
                return run(self.verifier, fixture)
        return None

    def _injectable(self) -> bool:
        return bool(self._first(takes_injected_uniforms))

    def _effort(self) -> float:
        """How thoroughly thresholds can be looked for in the time there is."""
        requests = self._fitting(self.settings.locating_seconds)
        effort = (requests - LEAST_REQUESTS) / LOCATING_REQUESTS
        return min(1.0, effort) if effort > LEAST_EFFORT else 0.0

    def _fitting(self, seconds: float | int, least: int = 0) -> int:
        """Returns how many requests fit into a time limit, by the reckoned time of one; ``least`` or more."""
        return max(least, int(seconds / self.seconds_a_request)) if seconds else MOST_DRAWS

    def _begin(self, fixture: Fixture, injectable: bool, effort: float, deadline: float | None) -> None:
        if injectable:
            calls, failures = extreme_failures(self.verifier, fixture)
            self.extremes += failures
            row = Row(fixture.name, EXTREMES, calls, float(len(failures)), 0, float(not failures))
            self.extra.append(row)
        self.probes[fixture.name] = Probe(self.verifier, fixture, effort, deadline)

    def _serial(self) -> None:
        if self.settings.serial_draws:
            self.report("successive steps")
            self._guarded("serial", self._successive)

    def _successive(self) -> None:
        seconds = self.settings.serial_seconds
        draws = min(self.settings.serial_draws, self._fitting(seconds, FEWEST) // _STEPS_A_PAIR)
        rows, late = serial_rows(self.verifier, draws, self.seed, self.device, seconds)
        self.extra.extend(rows)
        self._cut(_PAIRS, late)

    def _guarded(self, name: str, run: Callable[[], None]) -> None:
        try:
            run()
        except ArgumentError as error:
            self.evidence.unsupported[name] = str(error)

    def _draw(self) -> None:
        """The small fixtures, look after look."""
        drawn_on = [fixture for fixture in self.fixtures if fixture.name not in self.evidence.unsupported]
        self.small = SmallTier(self.verifier, drawn_on, self.seed, self.device, self.evidence, probes=self.probes)
        draws, deadline = self._draws, _deadline(self.settings.seconds)
        for share, part in LOOKS:
            wanted = max(int(draws * share), min(FIRST_LOOK, draws))
            if wanted > self.small.drawn:
                self.report(f"{wanted:,} draws a fixture")
            cut = self._cut(_SMALL, self.small.draw({fixture.name: wanted for fixture in drawn_on}, deadline))
            self._look(part if not cut else LOOKS[-1][1])
            if cut or (self.settings.stop_when_caught and self.rejected):
                return
            deadline = self._follow_up(final=share == 1.0, deadline=deadline)

    @property
    def _draws(self) -> int:
        """Steps on each small fixture: those of the suite, or fewer of slow code."""
        return min(self.settings.draws, self._fitting(self.settings.seconds, FEWEST) // len(self.fixtures))

    def _follow_up(self, final: bool, deadline: float | None) -> float | None:
        """Models anew where code did otherwise; after the last look they get their draws at once.

        Returns:
            the deadline, later where a new model would have no time for draws, without which nothing bounds it.
        """
        assert self.small is not None
        for _ in range(_AGAIN if final else 1):
            if deadline is not None and time.perf_counter() > deadline:
                break
            anew = [name for name, probe in self.probes.items() if probe.follow_up(self.seed)]
            if anew and deadline is not None:
                deadline = max(deadline, time.perf_counter() + _FOR_NEW_MODELS * self.settings.seconds)
            if not anew or not final:
                break
            self.report(f"followed up on {', '.join(anew)}: {self._draws:,} draws anew")
            wanted = {name: self.small.tallies[name].draws + self._draws for name in anew}
            self._cut(_SMALL, self.small.draw(wanted, deadline))
            self._look(AGAIN)
        return deadline

    def _cut(self, what: str, cut: bool) -> bool:
        """Notes that the time was up first, if it was."""
        if cut and what not in self.evidence.cut:
            self.evidence.cut.append(what)
        return cut

    def _look(self, part: float) -> None:
        """Holm's procedure over all tests so far."""
        rows = [*(self.small.rows() if self.small is not None else []), *self.extra]
        gate = {row.key: row.p_value for row in rows if row.gates and row.test not in HARD}
        least = min(gate.values(), default=1.0)
        drawn = 0 if self.small is None else self.small.drawn
        self.journal.note(draws=drawn, log10_p_value=math.log10(least) if least > 0 else None)
        alarm = self.settings.false_alarm * (1 - LOCATING) * part
        rejected = set(holm(gate, alarm))
        for row in rows:
            impossible = row.test in HARD and row.p_value == 0
            if impossible or (row.test == ACCEPTANCE and row.p_value < alarm / len(self.fixtures)):
                rejected.add(row.key)
        for row in rows:
            if row.key in rejected:
                self.caught.setdefault(row.key, row.draws)
        self.evidence.rows = [replace(row, rejected_at=self.caught.get(row.key)) for row in rows]


def _deadline(seconds: float | int) -> float | None:
    """Returns when a time limit ends, by ``time.perf_counter``; None if there is none."""
    return time.perf_counter() + seconds if seconds else None
