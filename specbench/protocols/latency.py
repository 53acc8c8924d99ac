"""The protocol ``latency``: how long a verifier takes from the target's raw logits to tokens, over a grid of cases.

Each case is a synthetic step (benchmark/synthetic.py). Rounds go through all cases, every second one backwards, with
new logits each time: the outcome is checked, the call is captured as a graph and replayed with the cache flushed
(benchmark/timer.py), what the last replay wrote is checked again, and a few calls are timed with the host's part
included. Beside the times stands the byte floor (benchmark/floor.py) at the copy bandwidth measured in this very run.

Where the sampler penalises or bans tokens, that is part of the call, and the same call with nothing left to penalise or
ban is timed right after it, on the rows that come of it: the same tokens are accepted and emitted.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch

from specbench.benchmark.check import CheckResult, check, check_again, check_shaped
from specbench.benchmark.floor import floor_bytes
from specbench.benchmark.grid import LIMITS, PLAIN, CaseSpec, cases, samplers
from specbench.benchmark.synthetic import Case, make_case, resolved
from specbench.benchmark.tables import LATENCY, LATENCY_SAMPLES, LATENCY_SCHEMA, LatencyRow, LatencySample
from specbench.benchmark.timed import Measured, round_trip
from specbench.benchmark.timer import FEWEST, Call, Captured, DeviceTimer, calls_by_host
from specbench.core.checks import check_count, check_seconds
from specbench.core.errors import ArgumentError, ConfigError
from specbench.core.machine.progress import say
from specbench.core.types import Verification
from specbench.protocols.protocol import Outcome, ParquetTable, RunContext
from specbench.protocols.settings import check_no_processors
from specbench.reports.plots import latency as plots
from specbench.rules import floor_info
from specbench.rules.rule import rule_of
from specbench.rules.verifier import capabilities

_POISON = -7  # no verifier writes it
_NOT_OURS = "its engine penalises and bans in ways of its own, which are not measured"


class LatencyProtocol:
    """See the module.

    Args:
        vocabulary: of the base case; its other axes are the run's own gamma, batch_size, dtype and sampler.
        context: of the base case: tokens of each text, which penalties and bans look at.
        grid: the cases: a list of {axis: values}, each a cross product over the base case.
        samplers: what the axis ``sampler`` may name: changes to the run's own sampler, and draft_probabilities.
        rounds: times that all cases are gone through, each with new logits.
        replays: at most this many a round and case.
        seconds: at most about so long a round and case, for slow verifiers.
        budget: seconds after which only the first round is still completed, for verifiers that take a second a call.
        host_calls: calls timed with the host's part, a round and case.
        flush: how the cache is flushed, "write" or "read" (benchmark/timer.py).
        cpu_logits: on a CPU, cases of more logits are skipped.

    Raises:
        ConfigError: a value that cannot work.
    """

    needs_models = False
    times = True

    def __init__(
        self,
        vocabulary: int,
        context: int,
        grid: Sequence[Any],
        samplers: Mapping[str, Mapping[str, Any]],
        rounds: int,
        replays: int,
        seconds: float,
        budget: float,
        host_calls: int,
        flush: str,
        cpu_logits: int,
    ):
        for name, count, least in (("rounds", rounds, 1), ("replays", replays, FEWEST), ("host_calls", host_calls, 1)):
            check_count(f"protocol.{name}", count, least)
        for name, value in (("seconds", seconds), ("budget", budget)):
            check_seconds(f"protocol.{name}", value, "Use a number from 0.")
        for name, value in (("vocabulary", vocabulary), ("context", context)):
            check_count(f"protocol.{name}", value, *LIMITS[name])
        check_count("protocol.cpu_logits", cpu_logits)
        self.vocabulary, self.context, self.grid, self.samplers = vocabulary, context, grid, samplers
        sized = (
            isinstance(grid, Sequence)
            and grid
            and all(isinstance(entry, Mapping) and "batch_size" in entry for entry in grid)
        )
        self.own_conditions = {"batch_size": "Every entry of protocol.grid has its own."} if sized else {}
        self.rounds, self.replays, self.seconds, self.host_calls = rounds, replays, seconds, host_calls
        self.budget, self.flush, self.cpu_logits = budget, flush, cpu_logits

    def specs(self, context: RunContext) -> tuple[CaseSpec, list[CaseSpec]]:
        """The base case, and all cases in order."""
        base = CaseSpec(
            batch_size=context.batch_size,
            vocabulary=self.vocabulary,
            gamma=context.gamma,
            dtype=str(context.dtype).removeprefix("torch."),
            sampler=PLAIN,
            sampling=context.sampling,
            context=self.context,
        )
        specs = cases(base, self.grid, samplers(self.samplers, context.sampling))
        for spec in specs:
            _check_ids(spec)
        return base, specs

    def run(self, context: RunContext) -> Outcome:
        """Times every case; see :class:`specbench.protocols.protocol.MeasurementProtocol`.

        Raises:
            WrongResultError: a verifier that emits what its rule does not allow.
            ConfigError: not a single case could be timed; processors.
        """
        check_no_processors(context)
        base, specs = self.specs(context)
        measured = [Measured(spec, self._why_not(spec, context)) for spec in specs]
        timer = DeviceTimer(context.device, self.flush)
        bandwidth, empty = timer.copy_bandwidth(), timer.empty_graph_us()
        for number, entry in round_trip(measured, self.rounds, self.budget):
            if entry.skipped is None:
                self._one_round(context, timer, entry, number)
        if (rule := rule_of(context.verifier)).rows_again is None:
            say(f"  the byte floor is that of the {floor_info(rule).title}: none is known of the {rule.title}")
        timed = [entry for entry in measured if entry.skipped is None]
        for reason, number in Counter(entry.skipped for entry in measured if entry.skipped is not None).items():
            say(f"  skipped {number} of {len(measured)} cases: {reason}")
        if not timed:
            raise ConfigError(
                "verifier", context.verifier_name, "no case could be timed", f"The first: {measured[0].skipped}"
            )
        common = {
            "verifier": context.verifier_name,
            "rule": rule.name,
            "device": str(context.device),
            "comparable": not capabilities(context.verifier).interpreted,
            "flush": self.flush,
            "empty_graph_us": empty,
            "copy_bandwidth": bandwidth,
        }
        rows = []
        for case, entry in enumerate(measured):
            cutoffs_known = entry.spec.sampling.truncates and rule.reference is None
            rows.append(entry.row(base, {**common, "case": case, "cutoffs_known": cutoffs_known}, context.seed))
        samples = [
            sample for case, entry in enumerate(measured) if entry.skipped is None for sample in entry.samples(case)
        ]
        return Outcome(
            _headline(rows),
            {},
            {LATENCY: ParquetTable(rows, LATENCY_SCHEMA), LATENCY_SAMPLES: ParquetTable(samples, LatencySample)},
            {"time_against_batch": plots.time_against_batch(pd.DataFrame(rows))},
        )

    def _why_not(self, spec: CaseSpec, context: RunContext) -> str | None:
        if context.device.type == "cpu" and spec.logits > self.cpu_logits:
            return f"more than protocol.cpu_logits={self.cpu_logits} logits, on a CPU"
        if spec.sampling.shaping and rule_of(context.verifier).reference is None:
            return _NOT_OURS
        return None

    def _one_round(self, context: RunContext, timer: DeviceTimer, entry: Measured, number: int) -> None:
        try:
            case = make_case(entry.spec, context.seed, number, context.device)
            self._time(context, timer, entry, case)
        except ArgumentError as error:  # the verifier does not do this case: an engine's sampler without one-hot drafts
            entry.skipped = str(error)
        except torch.OutOfMemoryError:
            entry.skipped = "the device's memory does not hold it"
        if context.device.type == "cuda":
            torch.cuda.empty_cache()  # a graph's memory is not reused by the next one

    def _time(self, context: RunContext, timer: DeviceTimer, entry: Measured, case: Case) -> None:
        checked, captured, call, times = self._replayed(context, timer, entry, case)
        host_calls = calls_by_host(times, self.seconds, self.host_calls)
        floor = floor_bytes(
            rule_of(context.verifier),
            entry.spec.vocabulary,
            case.target_logits.element_size(),
            case.num_draft_tokens.cpu().numpy(),
            np.array(checked.num_accepted),
            greedy=entry.spec.sampling.greedy,
            draft_probabilities=entry.spec.draft_probabilities,
        )
        entry.add(captured, times, timer.host_times(call, host_calls, case.restore), floor)
        entry.num_accepted += checked.num_accepted
        entry.rounding += checked.rounding
        if case.history is not None:
            entry.plain_us.append(self._replayed(context, timer, entry, case.shaped_before)[-1])

    def _replayed(
        self, context: RunContext, timer: DeviceTimer, entry: Measured, case: Case
    ) -> tuple[CheckResult, Captured, Call, list[float]]:
        """What the check found, the call, and the microseconds of its replays; all of them checked."""
        verifier = context.verifier
        # Engines' own verifiers get the cutoffs: their engines search for them in other ways, which are not measured.
        cutoffs_known = rule_of(verifier).reference is None

        def call() -> Verification:
            return verifier.verify(*case.inputs(cutoffs_known, capabilities(verifier).takes_masks))

        checked = check(verifier, case, call())
        captured = timer.capture(call, capturable=capabilities(verifier).limits.capturable)
        repeats = timer.repeats(captured, call, self.seconds, self.replays, case.restore)
        entry.repeats = entry.repeats or repeats
        times = timer.device_times(captured, call, entry.repeats, case.restore)
        if captured.graph is None:
            case.restore()
            check_again(verifier, case, call(), checked)
        else:  # the buffers that the replays wrote, and then a replay that must write all of them
            check_again(verifier, case, captured.outcome, checked)
            check_shaped(case, case.left())
            captured.outcome.token_ids.fill_(_POISON)
            captured.outcome.num_accepted.fill_(_POISON)
            case.restore()
            captured.graph.replay()
            check_again(verifier, case, captured.outcome, checked)
        return checked, captured, call, times


def _check_ids(spec: CaseSpec) -> None:
    """Raises ConfigError for ids beyond a vocabulary, under the name of the sampler that has them."""
    try:
        resolved(spec.sampling, spec.vocabulary)
    except ConfigError as error:
        if spec.sampler == PLAIN:
            raise
        key = error.key.replace("sampler", f"protocol.samplers.{spec.sampler}", 1)
        remedy = f"{error.remedy.removesuffix('.')}, or leave that sampler out of protocol.grid."
        raise ConfigError(key, error.value, error.problem, remedy) from None


def _headline(rows: list[LatencyRow]) -> str:
    timed = [row for row in rows if row.skipped is None]
    shown = [row for row in timed if row.variant == "base"] or timed
    largest = max(shown, key=lambda row: row.batch_size)
    text = f"{len(timed)} cases timed and checked"
    if len(timed) < len(rows):
        text += f", {len(rows) - len(timed)} skipped"
    text += f"; {largest.batch_size} requests, {largest.variant}: {largest.median_us:.1f} us"
    text += f", {largest.ratio:.2f} times the byte floor"
    return text if largest.comparable else f"{text} (through an interpreter: not comparable)"
