"""Calls drawn from the input distribution D (inputs/), each compared with the rule that the verifier names.

n independent calls without a difference say that at most ln(1 / alpha) / n of the calls of D are handled otherwise than
by the rule, at confidence 1 - alpha; with differences the bound is that of Clopper and Pearson. The unit is the call,
since the requests of one call share its shape, its layout and each other's company. The total variation of a step from
the target's is at most that share, in the mean over D (the coupling inequality), plus the error of the rule itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import torch
from jaxtyping import Int64
from torch import Tensor

from specbench.errors import ArgumentError
from specbench.exactness import watch
from specbench.exactness.enumeration.reference import held_against
from specbench.exactness.evidence import CLASSES, FORM, LAW, PAIRED, Row, StratumRow
from specbench.exactness.inputs import STRATA, Call, Stratum, Takes, draw_call
from specbench.exactness.inputs.census import Census
from specbench.exactness.inputs.expected import CallPath, expected
from specbench.exactness.inputs.law import LawError, law_error
from specbench.exactness.statistics.bets import DifferenceBets
from specbench.exactness.statistics.cells import NUMBERS, CellCounts, smooth
from specbench.exactness.statistics.power import CONFIDENCE
from specbench.exactness.strata import Seen, mean, together
from specbench.rules import known
from specbench.rules.agreement import TOLERANCE, only, well_formed
from specbench.rules.agreement import excess as rounding_excess
from specbench.sampling_params import SamplingParams
from specbench.types import Verification
from specbench.verifiers import Verifier

ALL, LARGE, CONFIGURED = "all of D", "large vocabularies", "as configured"
CONFIGURED_FIRST = 2**40  # the number of the first call under the conditions of the run
_PURE_EVERY = 64  # calls, of which one looks whether the verifier alters its arguments
_EXPLAINED = 4096  # differing requests that are explained; of more, the rest counts as no rounding
_BET_ON = 64  # differing requests of a call that are bet on


@dataclass(frozen=True)
class Configured:
    """The conditions of a run, a stratum of its own.

    Attributes:
        stratum: its vocabulary, draft length and batch size.
        sampling, dtype: in the place of what D draws.
    """

    stratum: Stratum
    sampling: SamplingParams
    dtype: str

    @staticmethod
    def of(sampling: SamplingParams, gamma: int, batch: int, dtype: str, vocabulary: int) -> Configured:
        """A stratum with one vocabulary, draft length and batch size."""
        reason = "the sampler, gamma, batch_size and dtype of this run; all else as in D"
        sizes = (vocabulary, vocabulary), {(gamma, gamma): 1.0}, {(batch, batch): 1.0}
        return Configured(Stratum(CONFIGURED, reason, 0.0, *sizes), sampling, dtype)


@dataclass
class Trials:
    """What calls of D showed.

    Attributes:
        rows: by stratum, and of several together.
        tests: rows of the tests.
        census: what was drawn.
        example: the call and the request with the smallest draft whose tokens are not the rule's, beyond rounding.
        refusals: the verifier's reasons for refusing calls, with how often.
        unfit: the request on which the rule's formulas are farthest from the target's distribution, if on any.
        cut: whether the time was up first.
    """

    rows: list[StratumRow] = field(default_factory=list)
    tests: list[Row] = field(default_factory=list)
    census: Census = field(default_factory=Census)
    example: tuple[Call, int] | None = None
    refusals: dict[str, int] = field(default_factory=dict)
    unfit: tuple[Call, int, LawError] | None = None
    cut: bool = False


@watch.one_thread()
def run_trials(
    verifier: Verifier,
    calls: int,
    seconds: float | int,
    seed: int,
    device: torch.device,
    configured: Configured | None = None,
    report: Callable[[str], None] = lambda _: None,
    strata: tuple[Stratum, ...] | None = None,
) -> Trials:
    """Draws calls from D and puts each before the verifier.

    Args:
        calls: of D; a twentieth as many follow under the conditions of the run.
        seconds: after which no further call is drawn; 0 is no limit.
        seed: of the inputs.
        configured: the conditions of the run; None for none.
        strata: in the place of D, in turn; for tests.

    Raises:
        VerifierFault: the verifier did what no verifier may.
    """
    return _Trials(verifier, seed, device, report).run(calls, seconds, configured, strata)


class _Trials:
    def __init__(self, verifier: Verifier, seed: int, device: torch.device, report: Callable[[str], None]):
        self.verifier, self.seed, self.device, self.report = verifier, seed, device, report
        self.rule, self.takes = held_against(verifier), Takes.of(verifier)
        own = known.of(verifier)
        self.own_rule = self.rule is not None and known.KNOWN.get(own.name) is not own
        self.result, self.seen = Trials(), {}
        self.by_cells: dict[str, CellCounts] = {}  # by stratum: a bias in one is not lost among the requests of others
        self.bets = DifferenceBets(NUMBERS, 2.0, device)
        self.bet_on = 0
        self.counted = self.rule is None

    def run(
        self, calls: int, seconds: float | int, configured: Configured | None, strata: tuple[Stratum, ...] | None
    ) -> Trials:
        started, shown = time.perf_counter(), time.perf_counter()
        for number, call in enumerate(self._drawn(calls, configured, strata)):
            if number == 0:
                started = time.perf_counter()
            self._verify(call)
            now = time.perf_counter()
            if now - shown > 15:
                self.report(f"{number + 1:,} of {calls:,} calls drawn from D")
                shown = now
            if seconds and now - started > seconds:
                self.result.cut = number + 1 < calls
                break
        self.result.rows = [row for row in self._rows() if row.calls or row.refused]
        self.result.tests = self._tests()
        return self.result

    def _drawn(self, calls: int, configured: Configured | None, strata: tuple[Stratum, ...] | None) -> Iterator[Call]:
        """The calls; the next one is drawn while the verifier has the one before."""
        later = max(1, calls // 20) if configured is not None else 0

        def draw(i: int) -> Call:
            with torch.inference_mode():
                if configured is not None and i % 21 == 20 and i // 21 < later:
                    one = configured
                    number = CONFIGURED_FIRST + i // 21
                    return draw_call(self.seed, number, self.device, self.takes, one.stratum, one.sampling, one.dtype)
                return draw_call(self.seed, i, self.device, self.takes, strata[i % len(strata)] if strata else None)

        total = calls + later
        if self.takes.draft_tokens is not None:  # the verifier's own code is called from one thread
            yield from map(draw, range(total))
            return
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(draw, 0)
            for i in range(1, total + 1):
                call = waiting.result()
                if i < total:
                    waiting = pool.submit(draw, i)
                yield call

    def _verify(self, call: Call) -> None:
        seen = self.seen.setdefault(call.stratum.name, Seen(call.stratum))
        arguments = (call.draft, call.target, call.streams)
        try:
            if call.number % _PURE_EVERY == 0:
                watch.check_pure(self.verifier, call, *arguments)
            result = watch.verify(self.verifier, call, *arguments)
        except ArgumentError as error:
            seen.refused += 1
            self.result.refusals[str(error)] = self.result.refusals.get(str(error), 0) + 1
            return
        size = len(call.counts)
        seen.calls, seen.requests, seen.rows = seen.calls + 1, seen.requests + size, seen.rows + len(call.p.totals)
        if call.number < CONFIGURED_FIRST:
            self.result.census.add(call)
        path = CallPath(call)
        good = self._well_formed(call, path, result, seen)
        if self.rule is not None:
            self._compare(call, path, result, good, seen)
            if self.own_rule:
                self._check_law(call, seen)
        if self.counted and call.number < CONFIGURED_FIRST:
            cells = self.by_cells.setdefault(call.stratum.name, CellCounts(self.device))
            cells.add(call, path, result, good.nonzero()[:, 0])

    def _well_formed(self, call: Call, path: CallPath, result: Verification, seen: Seen) -> Tensor:
        """Requests whose result has the form of a result; the others, and tokens of probability 0, are counted."""
        good = well_formed(call.draft, call.target, result)
        places = torch.arange(result.token_ids.shape[1], device=good.device)
        there = (places <= result.num_accepted[:, None]) & good[:, None]
        row = torch.where(there, path.first_p[:, None] + places, 0)
        token = torch.where(there, result.token_ids, 0)
        forbidden = there & (call.p.weights[row, token] == 0)
        impossible = ~good | forbidden.any(dim=1)
        seen.impossible += int(impossible.sum())
        if self.rule is None and bool(impossible.any()):
            self._keep(call, impossible.nonzero()[:, 0])
        return good

    def _compare(self, call: Call, path: CallPath, result: Verification, good: Tensor, seen: Seen) -> None:
        assert self.rule is not None
        wanted = expected(self.rule, call, path)
        differ = (result.token_ids != wanted.token_ids).any(dim=1) | (result.num_accepted != wanted.num_accepted)
        requests = differ.nonzero()[:, 0]
        if not len(requests):
            return
        seen.differing_calls += 1
        seen.differing += len(requests)
        structural = self._beyond_rounding(call, result, requests, seen)
        if len(structural):
            self._keep(call, structural)
        if self.rule.lossless and not self.own_rule:
            chosen = requests[good[requests]][:_BET_ON]
            got, other = (smooth(call, path, each, chosen) for each in (result, wanted))
            self.bets.add(got - other)
            self.bet_on += len(chosen)

    def _beyond_rounding(
        self, call: Call, result: Verification, requests: Int64[Tensor, " m"], seen: Seen
    ) -> Int64[Tensor, " k"]:
        """Those of the requests whose tokens no rounding explains."""
        if seen.differing - seen.rounding > _EXPLAINED or self.rule is None:
            return requests
        explained = []
        for part in requests.split(max(1, 2**22 // (call.vocabulary * (call.draft.max_draft_tokens + 1)))):
            one = only(part, call.draft, call.target, call.streams)
            outcome = Verification(result.token_ids[part], result.num_accepted[part])
            explained.append(rounding_excess(self.rule, *one, outcome) <= TOLERANCE)
        by_rounding = torch.cat(explained)
        seen.rounding += int(by_rounding.sum())
        return requests[~by_rounding]

    def _keep(self, call: Call, requests: Int64[Tensor, " m"]) -> None:
        """Keeps the smallest request that shows a difference: few tokens first, then a short draft."""
        b = int(requests[call.counts[requests].argmin()])
        size = (call.vocabulary, int(call.counts[b]), len(call.counts))
        if self.result.example is not None:
            kept, other = self.result.example
            if size >= (kept.vocabulary, int(kept.counts[other]), len(kept.counts)):
                return
        self.result.example = (call, b)

    def _check_law(self, call: Call, seen: Seen) -> None:
        """The rule's formulas on one request, chosen by the call's number."""
        assert self.rule is not None
        request = call.number % len(call.counts)
        error = law_error(self.rule, call, request)
        if error is None:
            seen.no_form += 1
            self.counted = True
            return
        seen.law_checked += 1
        seen.largest_error = max(seen.largest_error, min(1.0, error.step))
        if error.step > TOLERANCE:
            seen.law_wrong += 1
            kept = self.result.unfit
            if self.rule.lossless and (kept is None or (error.first, error.step) > (kept[2].first, kept[2].step)):
                self.result.unfit = (call, request, error)

    def _rows(self) -> Iterator[StratumRow]:
        drawn = [self.seen[each.name] for each in STRATA if each.name in self.seen]
        others = [one for name, one in self.seen.items() if name not in {each.name for each in STRATA}]
        along = {name: cells.bound(1 - (1 - CONFIDENCE) / len(self.by_cells)) for name, cells in self.by_cells.items()}
        kind = (self.rule, self.own_rule)
        for one in drawn:
            yield one.row(*kind, along.get(one.stratum.name))
        if drawn:
            large = [one for one in drawn if one.stratum.large]
            yield together(LARGE, "the strata of 32,000 tokens and more", large).row(*kind, None)
            yield together(ALL, "every stratum by its probability", drawn).row(*kind, mean(drawn, along))
        for one in others:
            yield one.row(*kind, None)

    def _tests(self) -> list[Row]:
        rows = [
            Row(f"{name} of D", FORM, seen.requests, float(seen.impossible), 0, float(seen.impossible == 0))
            for name, seen in self.seen.items()
            if seen.calls
        ]
        rows += [
            Row(f"{name} of D", CLASSES, self.seen[name].requests, 0.0, 0, cells.p_value)
            for name, cells in self.by_cells.items()
        ]
        of_d = [seen for name, seen in self.seen.items() if name != CONFIGURED]
        checked = sum(seen.law_checked for seen in of_d)
        if checked and self.rule is not None and self.rule.lossless:
            wrong = sum(seen.law_wrong for seen in of_d)
            follows = self.result.example is None  # else nothing follows for the code from the rule
            rows.append(Row("D", LAW, checked, float(wrong), 0, float(wrong == 0), gates=follows))
        if self.bet_on:
            rows.append(Row("calls drawn", PAIRED, self.bet_on, 0.0, 0, self.bets.p_value))
        return rows
