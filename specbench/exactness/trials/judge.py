"""Which calls are put before a verifier, and what each shows, compared with the rule that the verifier names.

What a call shows depends on the call alone, so that processes may share the calls (worker_pool.py). The one exception:
after _EXPLAINED requests of a stratum that no rounding explains, a process explains no more of them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from specbench.core.errors import ArgumentError
from specbench.core.types import Verification
from specbench.exactness import guard
from specbench.exactness.inputs import Call, Stratum, Takes, draw_call
from specbench.exactness.inputs.census import Census
from specbench.exactness.inputs.distribution import choices_of, drawn_stratum
from specbench.exactness.inputs.law import LawError, law_error, same_in_batch
from specbench.exactness.purity.altered_arguments import check_pure, unaltered
from specbench.exactness.reference import held_against
from specbench.exactness.statistics.cells import TokenCells, smooth, token_cells
from specbench.exactness.trials.strata import Seen
from specbench.rules.agreement import TOLERANCE
from specbench.rules.rule import Rule, of_this_tree
from specbench.rules.verifier import Verifier

CONFIGURED_FIRST = 2**40  # the number of the first call under the conditions of the run
_PURE_EVERY = 64  # calls, of which one looks whether the verifier alters its arguments
_EXPLAINED = 4096  # requests of a stratum that no rounding explains; beyond these in a process, none is explained
_BET_ON = 64  # differing requests of a call that are bet on


@dataclass
class CallJudgement:
    """What one call showed.

    Attributes:
        census: its arguments' properties.
        refusal: the verifier's reason for refusing it; empty if it did not.
        request: its smallest request whose tokens are not the rule's, beyond rounding; None if there is none.
        size: of that request: tokens of the vocabulary, draft tokens, requests of the call.
        tokens: that it emitted, PADDING behind them.
        error: of the rule's formulas on its chosen request, if it is more than rounding.
        cells: of its tokens, where tokens are counted.
        differences: of differing requests from what the rule gives, one row each; None without one.
    """

    seen: Seen
    census: Census = field(default_factory=Census)
    refusal: str = ""
    request: int | None = None
    size: tuple[int, int, int] = (0, 0, 0)
    tokens: tuple[int, ...] = ()
    error: LawError | None = None
    cells: TokenCells | None = None
    differences: np.ndarray | None = None


@dataclass(frozen=True)
class CallsToDraw:
    """Which calls are put before a verifier: of D, and among them a twentieth as many under the conditions of a run.

    Attributes:
        of_d: how many of D.
        configured: the conditions of the run (run.configured_stratum); None for none.
        strata: in the place of D, in turn; None for D.
    """

    seed: int
    device: torch.device
    of_d: int
    configured: Stratum | None = None
    strata: tuple[Stratum, ...] | None = None

    def __len__(self) -> int:
        return self.of_d + self._of_run

    @property
    def _of_run(self) -> int:
        return 0 if self.configured is None else max(1, self.of_d // 20)

    def draw(self, i: int, takes: Takes) -> Call:
        """The call at a place in the order in which they are made."""
        with torch.inference_mode():
            number, stratum = self._at(i)
            return draw_call(self.seed, number, self.device, takes, stratum)

    def stratum(self, i: int) -> Stratum:
        number, stratum = self._at(i)
        return stratum or drawn_stratum(choices_of(self.seed, number))

    def _at(self, i: int) -> tuple[int, Stratum | None]:
        """The number of that call, and its stratum if it is not drawn with the call."""
        number, stratum = i, self.strata[i % len(self.strata)] if self.strata else None
        of_run = i // 21  # after each 20 calls of D one of the run; the last one of fewer than 20
        if of_run < self._of_run and i == min(21 * of_run + 20, self.of_d + of_run):
            number, stratum = CONFIGURED_FIRST + of_run, self.configured
        return number, stratum


class Judge:
    """Puts calls before a verifier, by their places.

    Attributes:
        calls: that can be put before it.
        rule: that it is compared with; None if with none.
        own_rule: whether that rule is not one of this tree, so that its law is checked on each call.
        counted: whether tokens are counted, since there is no rule, or no closed form of its law.
    """

    def __init__(self, verifier: Verifier, calls: CallsToDraw, counted: bool = False):
        self.verifier, self.calls, self.rule = verifier, calls, held_against(verifier)
        self.own_rule = self.rule is not None and not of_this_tree(self.rule)
        self.counted = counted or self.rule is None
        self._takes, self._unexplained = Takes.of(verifier), Counter[str]()

    def __reduce__(self) -> tuple[Any, ...]:
        """Made anew from the verifier in another process, since a rule's formulas may be lambdas."""
        return Judge, (self.verifier, self.calls, self.counted)

    def drawn(self, i: int) -> Call:
        return self.calls.draw(i, self._takes)

    def law(self, call: Call) -> LawError | None:
        """Returns the error of the rule's formulas on the call's chosen request.

        None means that the rule has no closed form, or one that reads other requests of the batch.
        """
        assert self.rule is not None
        request = checked_request(call)
        error = law_error(self.rule, call, request)
        return error if error is not None and same_in_batch(self.rule, call, request) else None

    def __call__(self, i: int) -> CallJudgement:
        """Draws a call, puts it before the verifier, and compares.

        Raises:
            VerifierFault: the verifier did what no verifier may.
        """
        try:
            call = self.drawn(i)
        except ArgumentError as error:  # its own sampler refuses the rows
            return CallJudgement(Seen(self.calls.stratum(i), refused=1), refusal=str(error))
        seen = Seen(call.stratum)
        judgement = CallJudgement(seen)
        try:
            if call.number % _PURE_EVERY == 0:
                check_pure(self.verifier, call)
            with unaltered(call):
                result = guard.verify(self.verifier, call)
        except ArgumentError as error:
            seen.refused, judgement.refusal = 1, str(error)
            return judgement
        seen.calls, seen.requests, seen.rows = 1, len(call.counts), len(call.p)
        of_d = call.number < CONFIGURED_FIRST
        if of_d:
            judgement.census.add(call)
        good = call.well_formed(result)
        wrong = impossible(call, result)
        seen.impossible = int(wrong.sum())
        if self.rule is None and seen.impossible:
            _keep(call, result, wrong.nonzero()[:, 0], judgement)
        if self.rule is not None:
            self._compare(self.rule, call, result, good, judgement)
            if self.own_rule:
                self._check_law(call, judgement)
        if of_d and (self.counted or seen.no_form):
            judgement.cells = token_cells(call, result, good.nonzero()[:, 0])
        return judgement

    def _compare(self, rule: Rule, call: Call, result: Verification, good: Tensor, judgement: CallJudgement) -> None:
        wanted, stratum = call.expected(rule), call.stratum.name
        requests = result.differs(wanted).nonzero()[:, 0]
        if not len(requests):
            return
        judgement.seen.differing = len(requests)
        judgement.seen.shares[len(requests) / len(call.counts)] = 1
        structural = requests
        if self._unexplained[stratum] <= _EXPLAINED:
            structural = call.beyond_rounding(rule, result, requests)
            self._unexplained[stratum] += len(structural)
        judgement.seen.rounding = len(requests) - len(structural)
        if len(structural):
            _keep(call, result, structural, judgement)
        if rule.lossless and not self.own_rule:
            chosen = requests[good[requests]][:_BET_ON]
            got, other = (smooth(call, verification, chosen) for verification in (result, wanted))
            judgement.differences = (got - other).cpu().numpy()

    def _check_law(self, call: Call, judgement: CallJudgement) -> None:
        """The rule's formulas on one request, chosen by the call's number."""
        error, seen = self.law(call), judgement.seen
        if error is None:
            seen.no_form = 1
            return
        seen.law_checked, seen.largest_error = 1, min(1.0, error.step)
        if error.step > TOLERANCE:
            seen.law_wrong = 1
            judgement.error = error


def impossible(call: Call, result: Verification) -> Bool[Tensor, " B"]:
    """Whether a request's result has not the form of a result, or has a token of probability 0."""
    good = call.well_formed(result)
    places = torch.arange(result.token_ids.shape[1], device=good.device)
    there = (places <= result.num_accepted[:, None]) & good[:, None]
    token = torch.where(there, result.token_ids, 0)
    return ~good | (there & (call.p[call.path.p_rows, token] == 0)).any(dim=1)


def checked_request(call: Call) -> int:
    """Returns the index of the request on which a rule's formulas are compared with the target."""
    return call.number % len(call.counts)


def _keep(call: Call, result: Verification, requests: Int64[Tensor, " m"], judgement: CallJudgement) -> None:
    """Keeps the smallest request that shows a difference: the one with the shortest draft."""
    b = int(requests[call.counts[requests].argmin()])
    judgement.tokens = tuple(result.token_ids[b].tolist())
    judgement.request, judgement.size = b, (call.vocabulary, int(call.counts[b]), len(call.counts))
