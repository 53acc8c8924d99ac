"""The suite: every test of a verifier, composed so that one number bounds the chance of a false alarm.

Tests of small fixtures look several times (draws/alpha_spending.py), all others, of calls of D too, once.
"""

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from specbench.core.errors import ArgumentError
from specbench.core.machine.devices import one_thread
from specbench.core.machine.journal import Journal
from specbench.exactness import guard
from specbench.exactness.draws.alpha_spending import AGAIN, AT_LAST, Looks
from specbench.exactness.draws.probes import Probe
from specbench.exactness.draws.serial import serial_rows
from specbench.exactness.draws.small_pairs import SmallTier, drawn_on_each
from specbench.exactness.enumeration.injection import (
    Example,
    calls_a_request,
    extreme_failures,
    takes_injected_uniforms,
)
from specbench.exactness.evidence import Evidence
from specbench.exactness.failures.fixture_failure import simplest_failure
from specbench.exactness.failures.likely_cause import CauseSearch
from specbench.exactness.fixtures import Fixture, greedy_fixture, small_fixtures
from specbench.exactness.inputs import Stratum, Takes
from specbench.exactness.purity.fresh_copies import Subject, unused_copy
from specbench.exactness.purity.hidden_inputs import habits
from specbench.exactness.purity.long_use import LongUse
from specbench.exactness.results import ALL, EXTREMES, Row
from specbench.exactness.settings import RequestBudget, Settings, deadline_of
from specbench.exactness.trials import worker_pool
from specbench.exactness.trials.judge import CallsToDraw
from specbench.exactness.trials.run import Trials, run_trials
from specbench.exactness.verdict import names_another_rule
from specbench.rules.agreement import TOLERANCE
from specbench.rules.rule import rule_of

_IN_COMPANY = ("ragged", "mixed")  # fixtures whose requests differ within a batch, on which habits show
_SMALL, _D = "requests on small pairs", "calls of D"  # parts of a suite, of which a page says how far they were


@dataclass
class Examination:
    """One run of the suite.

    Attributes:
        verifier: the object given as a Verifier, which may be none.
        seed: of the run; request seeds follow from it. Runs whose seeds differ by a multiple of 2**22 share them.
        inputs_seed: of the calls drawn from D; with ``stop_when_caught`` none are drawn of what small fixtures refute.
        configured: the conditions of a run (trials.run.configured_stratum), from which calls are drawn as well.
        stuck: gets the evidence so far, from another thread, if a call of the verifier never returns and cannot be
            interrupted; it should save it and end the process.
        journal: gets the smallest p-value of each look.
        interrupted: gets the evidence so far if a signal ends the suite.
    """

    verifier: Any
    settings: Settings
    seed: int
    device: torch.device
    inputs_seed: int = 0
    configured: Stratum | None = None
    report: Callable[[str], None] = lambda _: None
    stuck: Callable[[Evidence], None] | None = None
    journal: Journal | None = None
    interrupted: Callable[[Evidence], None] = lambda _: None

    def __post_init__(self) -> None:
        self.evidence = Evidence(inputs_seed=self.inputs_seed)
        self.fixtures = [fixture.to(self.device) for fixture in (*small_fixtures(), greedy_fixture())]
        self.subject = Subject(self.verifier, unused_copy(self.verifier) if self.settings.use_calls else None)
        self.looks = Looks(self.settings, self.evidence, self.journal or Journal(), len(self.fixtures))
        self.budget = RequestBudget(self.settings)
        self.probes: dict[str, Probe] = {}
        self.extremes: list[Example] = []
        self.extra: list[Row] = []
        self.trials: Trials | None = None
        self.use: LongUse | None = None
        self.ahead: list[str] = []  # the part under way, and those behind it

    def run(self) -> Evidence:
        """Runs the suite.

        Raises:
            KeyboardInterrupt: a signal came (SIGINT; on the command line SIGTERM and SIGHUP too). It is raised after
                ``interrupted`` was called.
        """
        evidence, started = self.evidence, time.perf_counter()
        self._processes = worker_pool.processes(self.settings.calls, self.device)
        with guard.stoppable(), one_thread():
            try:
                guard.check_attributes(self.verifier)
                rule = rule_of(self.verifier)
                evidence.lossy_rule = rule.has_law and rule.guarantee == "lossy"
                with guard.call_limit(self.settings.call_seconds, None if self.stuck is None else self._hang):
                    self._run_parts()
                    self._finish()
            except guard.VerifierFault as fault:
                evidence.fault = str(fault)
                self._conclude()
            except guard.Stopped:
                # Bounds and tests are of a number of requests fixed beforehand. They hold for what was done by now too,
                # if the moment of the signal does not depend on outcomes: no message of a suite shows any, though the
                # p-values of the journal do. The call under way is counted nowhere, which takes it to be like all
                # others; for this reason too an interrupted verifier is never called lossless.
                evidence.interrupted = self._progress()
                self._conclude()
            evidence.seconds = time.perf_counter() - started
            if guard.stopped():
                self.interrupted(evidence)
        return evidence

    def _hang(self, fault: guard.VerifierFault) -> None:
        self.evidence.fault = str(fault)
        if self.device.type == "cpu":  # counts on a device that hangs cannot be read
            self._conclude()
        assert self.stuck is not None
        self.stuck(self.evidence)

    def _run_parts(self) -> None:
        """Everything, the quick parts first; evidence is complete after each, as far as it goes.

        A page names the parts that a signal ended, and those that return that their time limit did.
        """
        settings = self.settings
        parts: dict[str, Callable[[], bool | None]] = {
            "the search for habits": self._look_for_habits,
            "the search for thresholds": self._look_for_thresholds,
            **({"pairs of successive steps": self._draw_pairs} if settings.serial_draws else {}),
            _SMALL: self._draw,
            **({_D: self._draw_from_d} if settings.calls else {}),
            **({"calls in long use": self._use_for_long} if settings.use_calls else {}),
        }
        self.ahead = list(parts)
        while self.ahead:
            if parts[self.ahead[0]]():
                self.evidence.cut.append(self.ahead[0])
            if guard.stopped():
                raise guard.Stopped
            caught = self.ahead.pop(0) == _SMALL and settings.stop_when_caught and self._is_caught()
            self.ahead = [] if caught else self.ahead
        self._look(AT_LAST)

    def _progress(self) -> str:
        """Returns where a signal ended the suite, and which parts were not begun."""
        part, *others = self.ahead
        where = f"during {part}"
        if part == _SMALL:
            drawn_on = (probe for name, probe in self.probes.items() if name not in self.evidence.unsupported)
            done = min((probe.tally.draws for probe in drawn_on), default=0)
            where = f"after {done:,} of {self._draws:,} requests on each small pair"
        elif part == _D:
            whole = self.evidence.over(ALL)
            done = 0 if whole is None else whole.calls + whole.refused
            where = f"after {done:,} of {self.settings.calls:,} {part}"
        return f"{where}; not run: {', '.join(others)}" if others else where

    def _look_for_habits(self) -> None:
        self.report("what its tokens depend on, and where its thresholds are")
        self.budget = RequestBudget(self.settings, self._first(calls_a_request))
        if self.settings.use_calls and not self.budget.slow:
            self.use = LongUse(self.subject, self.fixtures, self.seed, self.device)
        company = [fixture for fixture in self.fixtures if fixture.name in _IN_COMPANY]
        self.evidence.habits = habits(self.verifier, company, self._injectable(), self.seed, self.budget.of_habits)

    def _look_for_thresholds(self) -> bool:
        injectable = self._injectable()
        effort = self.budget.effort if injectable else 0.0
        deadline = deadline_of(self.settings.locating_seconds)
        for fixture in self.fixtures:
            try:
                if injectable:
                    calls, failures = extreme_failures(self.verifier, fixture)
                    self.extremes += failures
                    self.extra.append(Row.of_failures(fixture.name, EXTREMES, calls, len(failures)))
                self.probes[fixture.name] = Probe(self.verifier, fixture, effort, deadline)
            except ArgumentError as error:
                self.evidence.unsupported[fixture.name] = str(error)
        return any(probe.late for probe in self.probes.values())

    def _draw_from_d(self) -> bool:
        self.report(f"{self.settings.calls:,} calls drawn from D")
        calls = CallsToDraw(self.evidence.inputs_seed, self.device, self.settings.calls, self.configured)
        self.trials = run_trials(
            self.verifier,
            calls,
            self.settings.input_seconds,
            self.report,
            share=self._processes,
            patience=4 * self.settings.call_seconds,  # a call may be made three times
            unused=self.subject.unused,
        )
        self.evidence.inputs, self.evidence.refusals = self.trials.rows, self.trials.refusals
        self.evidence.census = list(self.trials.census.rows())
        self.evidence.left_out = Takes.of(self.verifier).left_out
        self.extra += self.trials.tests
        return self.trials.cut

    def _use_for_long(self) -> bool:
        if self.use is None:
            return False
        self.report("one object in long use")
        late = self.use.exercise(self.settings.use_calls, self.settings.use_seconds)
        self.evidence.long_use = self.use.compare()
        return late

    def _conclude(self) -> None:
        """What follows from the counts, without another call of ``guard.verify``."""
        evidence = self.evidence
        if evidence.fault is not None or evidence.interrupted is not None:  # the look that was cut short
            self._look(AT_LAST)
        evidence.tallies = {name: probe.tally for name, probe in self.probes.items() if probe.tally.draws}
        self.looks.conclude(self.probes, self.seed)

    def _finish(self) -> None:
        """What only needs to be done once."""
        self.ahead = ["the search for the simplest failing example"]
        self._conclude()
        if names_another_rule(self.evidence) or self._is_caught():
            with contextlib.suppress(ArgumentError, guard.VerifierFault):  # of code that does otherwise now
                causes = CauseSearch(self.verifier, self.fixtures, self.seed, self.budget.compared)
                arguments = (self.subject, self.evidence, self.probes, self.extremes, self.trials, causes)
                self.evidence.failure = simplest_failure(*arguments)

    def _is_caught(self) -> bool:
        """Whether anything says that the verifier is not lossless."""
        least = (probe.least(self.looks.least_alarm) for probe in self.probes.values())
        return bool(self.evidence.rejected) or any(value > TOLERANCE for value in least)

    def _first(self, run: Callable[[Any, Fixture], Any]) -> Any:
        """What ``run`` returns on the first fixture that the verifier does not refuse; None if it refuses all."""
        for fixture in self.fixtures:
            with contextlib.suppress(ArgumentError):
                return run(self.verifier, fixture)
        return None

    def _injectable(self) -> bool:
        return bool(self._first(takes_injected_uniforms))

    def _draw_pairs(self) -> bool:
        self.report("successive steps")
        arguments = (self.budget.pairs, self.seed, self.device, self.settings.serial_seconds)
        rows, refused, late = serial_rows(self.verifier, *arguments)
        self.extra += rows
        self.evidence.unsupported |= refused
        return late

    def _draw(self) -> bool:
        small = SmallTier(self.verifier, self.probes, self.seed, self.device, self.evidence)
        for part in small.looks(self._draws, self.settings.seconds, self.report):
            self._look(part)
            if part != AGAIN and self.settings.stop_when_caught and self._is_caught():
                break
        return small.late

    @property
    def _draws(self) -> int:
        return self.budget.draws(len(self.fixtures))

    def _look(self, part: float) -> None:
        rows = [row for probe in self.probes.values() for row in probe.rows()]
        self.looks.look([*rows, *self.extra], part, drawn_on_each(self.probes))
