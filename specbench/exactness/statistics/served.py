"""Steps of the regimes (fixtures/regimes.py): held against the rule that the verifier names, and counted by classes."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence

import torch
from scipy import stats
from torch import Tensor

from specbench.errors import ArgumentError
from specbench.exactness.enumeration.laws import LAWS
from specbench.exactness.enumeration.reference import expected
from specbench.exactness.evidence import CLASSES, FORM, PAIRED, RegimeRow, Row
from specbench.exactness.fixtures import Fixture, Regime
from specbench.exactness.statistics.bets import DifferenceBets
from specbench.exactness.statistics.partitions import NAMED_CLASSES, Partitions
from specbench.exactness.statistics.power import CONFIDENCE
from specbench.exactness.steps import Steps, check_pure, verified_steps
from specbench.exactness.streams import REGIMES, request_streams
from specbench.rng import Streams
from specbench.sampling import SamplingParams
from specbench.types import Verification
from specbench.verifiers import Verifier
from specbench.verifiers.agreement import TOLERANCE, excess, only

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

    Args:
        draws: requests of each regime.
        seconds: for all of them together, shared out so that about as many requests of each fit; 0 is no limit.

    Raises:
        VerifierFault: the verifier did what no verifier may.
    """
    found, rows, paired = [], [], _Paired(max((regime.gamma for regime in regimes), default=0) + 1, device)
    weights = [_FIXED + regime.vocabulary * (regime.gamma + 2) for regime in regimes]
    for regime, weight in zip(regimes, weights, strict=True):
        report(f"{regime.name}: {regime.vocabulary:,} tokens, gamma {regime.gamma}, {regime.batch} requests a batch")
        one, its = _served(
            verifier,
            regime,
            draws,
            seconds * weight / sum(weights) if seconds else None,
            seed,
            device,
            len(regimes),
            paired,
        )
        found.append(one)
        rows += its
    if paired.requests:
        rows.append(Row("regimes", PAIRED, paired.requests, 0.0, 0, paired.bets.p_value))
    return found, rows


def _served(
    verifier: Verifier,
    regime: Regime,
    draws: int,
    seconds: float | int | None,
    seed: int,
    device: torch.device,
    regimes: int,
    paired: _Paired,
) -> tuple[RegimeRow, list[Row]]:
    """One regime, in at least one batch."""
    fixture = regime.fixture().to(device)
    low, high = fixture.logit_range
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
    )
    held = verifier.rule in LAWS and not hasattr(verifier, "draft_tokens")
    seen = _Seen(verifier.rule if held else None, fixture, seed, paired)
    started = time.perf_counter()
    while seen.requests < draws and not (
        seen.requests and seconds is not None and time.perf_counter() - started > seconds
    ):
        streams = request_streams(seed, REGIMES + seen.requests, regime.batch, regime.gamma + 1, device)
        try:
            if seen.requests == 0:
                check_pure(verifier, fixture, streams)
            seen.add(verified_steps(verifier, fixture, streams), streams)
        except ArgumentError as error:
            return dataclasses.replace(row, refused=str(error)), []
    share = (1 - CONFIDENCE) / regimes
    along, few, anywhere = seen.classes.upper_bounds(1 - share)
    held_against = {}
    if held:
        tv = float(stats.beta.isf(share, seen.differing + 1, max(seen.requests - seen.differing, 1e-9)))
        structural = seen.differing - seen.rounding
        held_against = {"differing": seen.differing, "rounding": seen.rounding, "structural": structural, "tv": tv}
    row = dataclasses.replace(row, requests=seen.requests, along=along, few=few, anywhere=anywhere, **held_against)
    return row, seen.rows(regime.name)


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

    def __init__(self, rule: str | None, fixture: Fixture, seed: int, paired: _Paired):
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
        if len(found):
            most = len(differ) if self._rate * len(differ) <= _BET_ON else int(_BET_ON / self._rate)
            bet_on = found[found < most]
            for part in bet_on.split(max(1, _DENSE // NAMED_CLASSES // (self.fixture.gamma + 1))):
                base = steps.drawn.base[part]
                self.paired.add(*(self.classes.excess(base, each[part]) for each in (steps.visible, wanted)))
            if self.differing < _EXPLAINED:
                self.rounding += self._by_rounding(steps, streams, found[:_EXPLAINED])
        self.differing += len(found)
        self._rate = max(len(found) / len(differ), 0.5 * self._rate)

    def _by_rounding(self, steps: Steps, streams: Streams, found: torch.Tensor) -> int:
        explained = 0
        rows = self.fixture.vocabulary * (self.fixture.gamma + 1)
        for part in found.split(max(1, _DENSE // rows)):
            one = only(part, steps.drawn.draft, steps.drawn.target, streams)
            outcome = Verification(steps.verification.token_ids[part], steps.verification.num_accepted[part])
            explained += int((excess(self.rule or "", *one, outcome) <= TOLERANCE).sum())
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
