"""Steps of the regimes (fixtures/regimes.py): held against the rule that the verifier names, and counted by classes."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Sequence

import torch
from scipy import stats
from torch import Tensor

from specbench.errors import ArgumentError
from specbench.exactness.enumeration.reference import expected, held_against
from specbench.exactness.evidence import CLASSES, FORM, PAIRED, RegimeRow, Row
from specbench.exactness.fixtures import Fixture, Regime
from specbench.exactness.statistics.bets import DifferenceBets
from specbench.exactness.statistics.partitions import NAMED_CLASSES, Partitions
from specbench.exactness.statistics.power import CONFIDENCE
from specbench.exactness.steps import Steps, check_pure, verified_steps
from specbench.exactness.streams import REGIMES, request_streams
from specbench.rng import Streams
from specbench.rules.agreement import TOLERANCE, excess, only
from specbench.rules.rule import Rule
from specbench.sampling import SamplingParams
from specbench.types import Verification
from specbench.verifiers import Verifier

_DENSE = 2**22  # probabilities held side by side when a difference is explained
_EXPLAINED = 4096  # differences of a regime that are looked into; of more, the rest counts as no rounding
_FIXED = 150_000  # logits that a request costs beside its own, so that many of those with few logits fit
_BET_ON = 512  # likewise those that are bet on, in a batch


def served_rows(
    verifier: Verifier,
    regimes: Sequence[Regime],
    draws: int,
    seconds: float | int,
    seed: int,
    device: torch.device,
    report: Callable[[str], None],
) -> tuple[list[RegimeRow], list[Row]]:
    """Verifies batches of every regime.

    Half of the time is shared out so that about as many requests of each fit; the rest goes to the regimes that have
    had the fewest, whose bounds are the widest. Making tables and the first batch, which may have kernels to compile,
    are not counted.

    Args:
        draws: requests of each regime.
        seconds: for all of them together; 0 is no limit.

    Raises:
        VerifierFault: the verifier did what no verifier may.
    """
    paired = _Paired(max((regime.gamma for regime in regimes), default=0) + 1, device)
    weights = [_FIXED + regime.vocabulary * (regime.gamma + 2) for regime in regimes]
    runs, spent = [], 0.0
    for regime, weight in zip(regimes, weights, strict=True):
        report(f"{regime.name}: {regime.vocabulary:,} tokens, gamma {regime.gamma}, {regime.batch} requests a batch")
        run = _Run(verifier, regime, draws, seed, device, paired)
        runs.append(run)
        run.verify()
        share = 0.5 * seconds * weight / sum(weights) if seconds else math.inf
        while not run.done and share > 0:
            took = run.verify()
            spent, share = spent + took, share - took
    while spent < seconds:
        left = [run for run in runs if not run.done]
        if not left:
            break
        spent += min(left, key=lambda run: run.seen.requests).verify()
    rows = [row for run in runs for row in run.rows()]
    if paired.requests:
        rows.append(Row("regimes", PAIRED, paired.requests, 0.0, 0, paired.bets.p_value))
    return [run.outcome((1 - CONFIDENCE) / len(regimes)) for run in runs], rows


class _Run:
    """Batches of one regime.

    Attributes:
        seen: what they showed.
        refused: the verifier's reason for not verifying them.
    """

    def __init__(
        self, verifier: Verifier, regime: Regime, draws: int, seed: int, device: torch.device, paired: _Paired
    ):
        self.verifier, self.regime, self.seed, self.device = verifier, regime, seed, device
        self.fixture = regime.fixture().to(device)
        self.rule = held_against(verifier)
        self.seen = _Seen(self.rule, self.fixture, seed, paired)
        self.refused: str | None = None
        self._draws = draws

    @property
    def done(self) -> bool:
        return self.refused is not None or self.seen.requests >= self._draws

    def verify(self) -> float:
        """One batch more; returns the seconds that it took."""
        started, regime = time.perf_counter(), self.regime
        streams = request_streams(self.seed, REGIMES + self.seen.requests, regime.batch, regime.gamma + 1, self.device)
        try:
            if self.seen.requests == 0:
                check_pure(self.verifier, self.fixture, streams)
            self.seen.add(verified_steps(self.verifier, self.fixture, streams), streams)
        except ArgumentError as error:
            self.refused = str(error)
        return time.perf_counter() - started

    def outcome(self, alpha: float) -> RegimeRow:
        """With bounds that hold but for a chance of ``alpha``."""
        regime, seen = self.regime, self.seen
        low, high = self.fixture.logit_range
        row = RegimeRow(
            regime=regime.name,
            reason=regime.reason,
            vocabulary=regime.vocabulary,
            gamma=regime.gamma,
            batch=regime.batch,
            dtype=regime.dtype,
            sampling=_in_words(regime.params),
            drafts="one-hot" if regime.deterministic else _in_words(regime.draft_params or regime.params),
            least_logit=low,
            largest_logit=high,
            refused=self.refused,
        )
        if self.refused is not None:
            return row
        along, few, anywhere = seen.classes.upper_bounds(1 - alpha)
        row = dataclasses.replace(row, requests=seen.requests, along=along, few=few, anywhere=anywhere)
        if self.rule is None:
            return row
        tv = None  # what agrees with a rule that is not lossless may be as far from the target as that rule
        if self.rule.lossless:
            tv = float(stats.beta.isf(alpha, seen.differing + 1, max(seen.requests - seen.differing, 1e-9)))
        structural = seen.differing - seen.rounding
        return dataclasses.replace(row, differing=seen.differing, rounding=seen.rounding, structural=structural, tv=tv)

    def rows(self) -> list[Row]:
        """The tests of this regime."""
        return self.seen.rows(self.regime.name) if self.seen.requests else []


class _Paired:
    """Bets on requests whose tokens are not the rule's, over all regimes: on classes of tokens at each place of a step.

    Attributes:
        requests: that differed and were bet on.
    """

    def __init__(self, width: int, device: torch.device):
        self.bets, self.requests = DifferenceBets(width * NAMED_CLASSES, 1.0, device), 0
        self._width = width

    def add(self, emitted: Tensor, wanted: Tensor) -> None:
        """Takes what some requests had in excess, [m, width of the regime, classes]."""
        missing = self._width - emitted.shape[1]
        self.bets.add(torch.nn.functional.pad(emitted - wanted, (0, 0, 0, missing)).flatten(1))
        self.requests += len(emitted)


class _Seen:
    """What was seen of one regime."""

    def __init__(self, rule: Rule | None, fixture: Fixture, seed: int, paired: _Paired):
        self.rule, self.fixture, self.paired = rule, fixture, paired
        self.classes = Partitions(fixture, seed)
        self.requests = self.impossible = self.differing = self.rounding = 0
        self._rate = 0.0

    def add(self, steps: Steps, streams: Streams) -> None:
        self.requests += len(streams.seeds)
        forbidden = steps.emitted & (self.fixture.p[steps.rows, steps.tokens] == 0)
        self.impossible += int((steps.malformed | forbidden.any(dim=1)).sum())
        self.classes.add(steps)
        if self.rule is None:
            return
        wanted = expected(self.rule, self.fixture, steps.drawn, streams).token_ids
        differ = (steps.visible != wanted).any(dim=1)
        found = differ.nonzero()[:, 0]
        if len(found) and self.rule.lossless:
            most = len(differ) if self._rate * len(differ) <= _BET_ON else int(_BET_ON / self._rate)
            bet_on = found[found < most]
            for part in bet_on.split(max(1, _DENSE // NAMED_CLASSES // (self.fixture.gamma + 1))):
                base = steps.drawn.base[part]
                self.paired.add(*(self.classes.excess(base, each[part]) for each in (steps.visible, wanted)))
        if len(found) and self.differing < _EXPLAINED:
            self.rounding += self._by_rounding(self.rule, steps, streams, found[:_EXPLAINED])
        self.differing += len(found)
        self._rate = max(len(found) / len(differ), 0.5 * self._rate)

    def _by_rounding(self, rule: Rule, steps: Steps, streams: Streams, found: torch.Tensor) -> int:
        explained = 0
        rows = self.fixture.vocabulary * (self.fixture.gamma + 1)
        for part in found.split(max(1, _DENSE // rows)):
            one = only(part, steps.drawn.draft, steps.drawn.target, streams)
            outcome = Verification(steps.verification.token_ids[part], steps.verification.num_accepted[part])
            explained += int((excess(rule, *one, outcome) <= TOLERANCE).sum())
        return explained

    def rows(self, name: str) -> list[Row]:
        return [
            Row(name, FORM, self.requests, float(self.impossible), 0, float(self.impossible == 0)),
            Row(name, CLASSES, self.requests, 0.0, 0, self.classes.p_value),
        ]


def _in_words(params: Sequence[SamplingParams]) -> str:
    if len(params) > 1:
        return f"{len(params)} kinds: " + "; ".join(_in_words([each]) for each in params)
    (one,) = params
    said = ["greedy" if one.temperature == 0 else f"temperature {one.temperature:g}"]
    if one.temperature:
        said += [f"top-k {one.top_k}"] if one.top_k else []
        said += [f"top-p {one.top_p:g}"] if one.top_p < 1 else []
        said += [f"min-p {one.min_p:g}"] if one.min_p else []
    return ", ".join(said)
