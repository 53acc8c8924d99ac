"""Calls drawn from the input distribution D (inputs/), each compared with the rule that the verifier names.

Of the requests of D (a call, then one of its requests) the share whose tokens are not the rule's is bounded by
confidence bounds on a mean (strata.py), with calls as the independent draws, since the requests of one call share its
shape, its layout and each other's company. The total variation of a step from the target's is at most that share, in
the mean over D (the coupling inequality), plus the error of the rule itself.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator

import torch

from specbench.core.machine.devices import one_thread
from specbench.core.sampling_params import SamplingParams
from specbench.exactness import guard
from specbench.exactness.inputs import STRATA, Call, Stratum
from specbench.exactness.inputs.census import Census
from specbench.exactness.inputs.draw import MOST_CELLS
from specbench.exactness.inputs.law import LawError
from specbench.exactness.results import ALL, CLASSES, FORM, LARGE, LAW, PAIRED, Row, StratumRow
from specbench.exactness.settings import deadline_of
from specbench.exactness.statistics.bets import DifferenceBets
from specbench.exactness.statistics.cells import NUMBERS, CellCounts
from specbench.exactness.statistics.power import CONFIDENCE
from specbench.exactness.trials.judge import CallJudgement, CallsToDraw, Judge, checked_request
from specbench.exactness.trials.strata import Seen, mean_over_d, together
from specbench.exactness.trials.worker_pool import in_order
from specbench.rules.verifier import Verifier

CONFIGURED = "as configured"  # the name of a stratum
CONFIGURED_VOCABULARY = 32_003  # of the calls under the conditions of a run
_LEAST_VOCABULARY = 257  # of them, where large batches of long drafts leave no room for more
_LOOKED_AT = 24  # calls on which a rule that is not registered is looked at first
_REPORT_EVERY = 15  # seconds


def configured_stratum(sampling: SamplingParams, gamma: int, batch: int, dtype: torch.dtype) -> Stratum:
    """The conditions of a run as a stratum of its own, with one vocabulary, draft length and batch size.

    The vocabulary has fewer tokens if the batch would not fit into memory.
    """
    vocabulary = max(_LEAST_VOCABULARY, min(CONFIGURED_VOCABULARY, MOST_CELLS // (batch * (gamma + 1))))
    reason = "the sampler, gamma, batch_size and dtype of this run; all else as in D"
    sizes = (vocabulary, vocabulary), {(gamma, gamma): 1.0}, {(batch, batch): 1.0}
    return Stratum(CONFIGURED, reason, 0.0, *sizes, sampling=sampling, dtype=str(dtype).removeprefix("torch."))


def run_trials(
    verifier: Verifier,
    calls: CallsToDraw,
    seconds: float | int = 0,
    report: Callable[[str], None] = lambda _: None,
    share: int = 1,
    patience: float | int = 0,
    unused: Verifier | None = None,
) -> Trials:
    """Draws calls from D and puts each before the verifier.

    Args:
        seconds: after which no further call is drawn; 0 is no limit.
        share: processes among which calls are shared (worker_pool.processes).
        patience: seconds after which a process without an answer counts as hanging; 0 is no limit.
        unused: a copy of the verifier that was never used, for other processes on a GPU; None for none there.

    Returns:
        What the calls showed: those before a signal, if one came meanwhile.

    Raises:
        VerifierFault: the verifier did what no verifier may.
    """
    on_cpu = calls.device.type == "cpu"
    if not on_cpu and unused is None:
        share = 1
    with one_thread():
        judge = Judge(verifier, calls)
        if judge.own_rule:  # its tokens are counted from the first call on if it has no closed form on one of these
            judge.counted = any(judge.law(judge.drawn(i)) is None for i in range(min(_LOOKED_AT, len(calls))))
        there = None if on_cpu or unused is None else Judge(unused, calls, judge.counted)
        trials = Trials(judge)
        trials.take(in_order(judge, len(calls), share, patience, there), seconds, report)
        return trials


class Trials:
    """What calls of D showed.

    Attributes:
        rows: by stratum, and of several together.
        example: the call and the request with the smallest draft whose tokens are not the rule's, beyond rounding, and
            these tokens.
        refusals: the verifier's reasons for refusing calls, with how often.
        unfit: the request on which the rule's formulas are farthest from the target's distribution, if on any.
        cut: whether the time was up first.
    """

    def __init__(self, judge: Judge):
        self.rows: list[StratumRow] = []
        self.tests: list[Row] = []
        self.census, self.refusals, self.cut = Census(), Counter[str](), False
        self.example: tuple[Call, int, tuple[int, ...]] | None = None
        self.unfit: tuple[Call, int, LawError] | None = None
        self._judge = judge
        self._seen: dict[str, Seen] = {}
        self._cells: dict[str, CellCounts] = {}  # by stratum: a bias in one is not lost among the requests of others
        self._bets = DifferenceBets(NUMBERS, 2.0, torch.device("cpu"))
        self._smallest, self._worst = (math.inf, math.inf, math.inf), (0.0, 0.0)  # of the example, of the unfit request

    def take(self, judgements: Generator[CallJudgement], seconds: float | int, report: Callable[[str], None]) -> None:
        """Adds judgements, in the order of the calls, and concludes."""
        shown, deadline = time.perf_counter(), deadline_of(seconds)
        total = len(self._judge.calls)
        with contextlib.suppress(guard.Stopped), contextlib.closing(judgements):
            for i, one in enumerate(judgements):
                self._add(i, one)
                now = time.perf_counter()
                if now - shown > _REPORT_EVERY:
                    report(f"{i + 1:,} of {total:,} calls drawn from D")
                    shown = now
                if now > deadline:
                    self.cut = i + 1 < total
                    break
        self.rows = [row for row in self._rows() if row.calls or row.refused]
        self.tests = self._tests()

    def _add(self, i: int, one: CallJudgement) -> None:
        """Adds what one call showed; the order decides what bets grow to."""
        stratum = one.seen.stratum
        self._seen.setdefault(stratum.name, Seen(stratum)).add(one.seen)
        self.census.merge(one.census)
        if one.refusal:
            self.refusals[one.refusal] += 1
        if one.request is not None and one.size < self._smallest:
            self._smallest, self.example = one.size, (self._judge.drawn(i), one.request, one.tokens)
        error, rule = one.error, self._judge.rule
        if error is not None and rule is not None and rule.lossless and (error.first, error.step) > self._worst:
            call = self._judge.drawn(i)
            self._worst, self.unfit = (error.first, error.step), (call, checked_request(call), error)
        if one.cells is not None:
            self._cells.setdefault(stratum.name, CellCounts()).add(one.cells)
        if one.differences is not None:
            self._bets.add(torch.from_numpy(one.differences))

    def _rows(self) -> Iterator[StratumRow]:
        drawn = [self._seen[stratum.name] for stratum in STRATA if stratum.name in self._seen]
        others = [one for name, one in self._seen.items() if name not in {stratum.name for stratum in STRATA}]
        along = {name: cells.bound(1 - (1 - CONFIDENCE) / len(self._cells)) for name, cells in self._cells.items()}

        def row(one: Seen, along: float | None = None) -> StratumRow:
            return one.row(self._judge.rule, self._judge.own_rule, along, self._judge.calls.seed)

        for one in drawn:
            yield row(one, along.get(one.stratum.name))
        if drawn:
            large = [one for one in drawn if one.stratum.large]
            yield row(together(LARGE, "the strata of 32,000 tokens and more", large))
            yield row(together(ALL, "every stratum by its probability", drawn), mean_over_d(along))
        for one in others:
            yield row(one)

    def _tests(self) -> list[Row]:
        rows = [
            Row.of_failures(f"{name} of D", FORM, seen.requests, seen.impossible)
            for name, seen in self._seen.items()
            if seen.calls
        ]
        rows += [
            Row(f"{name} of D", CLASSES, self._seen[name].requests, 0.0, 0, cells.p_value)
            for name, cells in self._cells.items()
        ]
        of_d = [seen for name, seen in self._seen.items() if name != CONFIGURED]
        checked = sum(seen.law_checked for seen in of_d)
        if checked and self._judge.rule is not None and self._judge.rule.lossless:
            wrong = sum(seen.law_wrong for seen in of_d)
            follows = self.example is None  # else nothing follows for the code from the rule
            rows.append(Row.of_failures("D", LAW, checked, wrong, gates=follows))
        if self._bets.draws:
            rows.append(Row("calls drawn", PAIRED, self._bets.draws, 0.0, 0, self._bets.p_value))
        return rows
