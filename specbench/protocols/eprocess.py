"""The protocol ``eprocess``: evidence against losslessness from whole texts of a real pair, watched token by token.

Texts are decoded speculatively, then target and draft score them in one pass each, and the bets of
exactness/texts/eprocess.py are settled. What is tested is the whole of drafting, scoring, verifying and committing, at
prefixes that occur. At temperature 0 nothing is drawn, and texts are held against plain ones (greedy_divergence.py).
"""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch

from specbench.core.errors import ConfigError
from specbench.core.machine.progress import progress
from specbench.core.machine.provenance import environment, request_seed
from specbench.decoding import Completion, Request
from specbench.exactness import tables
from specbench.exactness.texts.eprocess import TokenEvidence, bets, e_value, log_factors, paths, rejected_at
from specbench.metrics.intervals import Estimate, ratio_of_sums
from specbench.protocols.base import Outcome, Table
from specbench.protocols.greedy_divergence import greedy_divergence
from specbench.protocols.live import LiveSpeed
from specbench.protocols.model_context import ModelContext
from specbench.protocols.parameters import NOTHING_SHOWN, Ignored
from specbench.protocols.text_evidence import evidence, rounding
from specbench.reports.plots import evidence as plots

POINTS = 400  # of each path that are written down
ROUNDED = 8  # texts whose rounding is measured


class EprocessProtocol:
    """See the module.

    Args:
        tokens: decoded at least, the workload again and again under fresh seeds; once at temperature 0.
        false_alarm: the evidence at which the verifier is rejected is its reciprocal; not used at temperature 0.
        tolerance: by how much a scored logit may differ from the logit that the verifier saw; None takes it from the
            logits' dtype and size (exactness/texts/support.py).
    """

    needs_models = True
    mixed_sampling = True
    ignored_parameters: ClassVar[Ignored] = {
        **NOTHING_SHOWN,
        "n": "The workload is decoded again and again; use protocol.tokens.",
        "seed": "Every text has a seed of its own; use seed.",
    }

    def __init__(self, tokens: int, false_alarm: float, tolerance: float | None = None):
        if tokens < 1:
            raise ConfigError("protocol.tokens", tokens, "below 1", "Use 1 or more; evidence grows with them.")
        if not 0 < false_alarm < 1:
            raise ConfigError("protocol.false_alarm", false_alarm, "not inside (0, 1)", "Use 1e-6.")
        if tolerance is not None and not 0 < tolerance < math.inf:
            raise ConfigError("protocol.tolerance", tolerance, "not above 0", "Use null, or 1e-4 (logit units).")
        self.tokens, self.false_alarm, self.tolerance = tokens, false_alarm, tolerance

    @torch.inference_mode()
    def run(self, context: ModelContext) -> Outcome:
        """See :class:`specbench.protocols.base.MeasurementProtocol`."""
        if check_temperatures(context):
            return greedy_divergence(context, self.tolerance)
        completions, texts = self._settled(context)
        rounded = [
            rounding(context.target, completion, context.gamma + 1, self.tolerance)
            for completion in completions[:ROUNDED]
        ]
        return self._outcome(context, texts, tuple(max(values) for values in zip(*rounded, strict=True)))

    def _outcome(
        self, context: ModelContext, texts: Sequence[Sequence[TokenEvidence]], rounded: tuple[float, ...]
    ) -> Outcome:
        factors = [np.array([log_factors(token) for token in text]) for text in texts]
        mixture, by_bet = paths(np.concatenate(factors))
        strongest = int(by_bet.max(axis=0).argmax())
        reached, rejected = e_value(mixture), rejected_at(mixture, self.false_alarm)
        verdict = "not rejected" if rejected is None else "rejected"
        evidence = {
            "verdict": verdict,
            "tokens": len(mixture),
            "texts": len(texts),
            "without_bet": sum(token.doubtful for text in texts for token in text),
            "impossible": sum(token.impossible for text in texts for token in text),
            "log10_e_value": _finite(reached),  # null where it is infinite
            "rejected_at": rejected,
            "strongest_bet": bets()[strongest],
            "growth": _growth(factors, strongest),
            "tolerance": self.tolerance,  # null: default_tolerance of exactness/texts/support.py
            "rounding": {"texts": min(ROUNDED, len(texts)), "largest": rounded[0], "over_tolerance": rounded[1]},
        }
        certificate = {
            "verifier": context.verifier_name,
            "words": words(evidence),
            **evidence,
            "log10_e_values_of_bets": dict(zip(bets(), [_finite(e_value(path)) for path in by_bet.T], strict=True)),
            "false_alarm": self.false_alarm,
            # Of requests that have none of their own.
            "sampling": {**context.sampling.numbers, **context.sampling.shaping},
            "own_sampling": sum(request.sampling != context.sampling for request in context.requests),
            "processors": context.processors,
            "gamma": context.gamma,
            "dtype": str(context.dtype).removeprefix("torch."),
            "seed": context.seed,
            "command": context.command,
            "environment": environment(context.device),
        }
        rows = _rows(mixture, by_bet)
        return Outcome(
            words(evidence),
            {},
            {tables.EPROCESS: Table(rows, tables.EPROCESS_SCHEMA)},
            {"eprocess": plots.eprocess(pd.DataFrame(rows), self.false_alarm, context.verifier_name)},
            {"e_certificate.json": json.dumps(certificate, indent=1, allow_nan=False)},
        )

    def _settled(self, context: ModelContext) -> tuple[list[Completion], list[list[TokenEvidence]]]:
        """Texts, and the evidence of their tokens, batch by batch, so that it can be watched."""
        decoder, live = context.decoder(), LiveSpeed(context.journal)
        completions: list[Completion] = []
        texts: list[list[TokenEvidence]] = []
        wealth = np.zeros(len(bets()))  # log M of each bet
        with progress("decoding, and settling the bets", self.tokens) as advance:
            while live.tokens < self.tokens:
                batch = [_fresh(context, len(completions) + i) for i in range(context.batch_size)]
                started = time.perf_counter()
                decoded = decoder.run(batch)
                seconds = time.perf_counter() - started
                settled = [_evidence(context, text, self.tolerance) for text in decoded]
                wealth += np.sum([log_factors(token) for text in settled for token in text], axis=0)
                mixture = np.logaddexp.reduce(wealth) - math.log(len(wealth))
                live.decoded(decoded, seconds, log10_evidence=float(mixture / math.log(10)))
                advance(sum(len(text.token_ids) for text in decoded))
                completions += decoded
                texts += settled
        return completions, texts


def _evidence(context: ModelContext, text: Completion, tolerance: float | None) -> list[TokenEvidence]:
    drafter = context.drafter
    return evidence(context.target, drafter.model, text, tolerance, drafter.sampled_with(text.request.sampling))


def check_temperatures(context: ModelContext) -> bool:
    """Whether all texts are greedy. Raises ConfigError if some are: evidence has other forms at temperature 0."""
    greedy = [request.sampling.greedy for request in context.requests]
    if any(greedy) and not all(greedy):
        problem = f"{sum(greedy)} of {len(greedy)} requests have temperature 0, the others more"
        raise ConfigError("sampler.temperature", context.sampling.temperature, problem, "Run them apart.")
    return all(greedy)


def words(evidence: dict[str, Any]) -> str:
    """The verdict in a sentence."""
    value = evidence["log10_e_value"]
    text = f"{evidence['verdict']}: log10 evidence {'infinite' if value is None else f'{value:.2f}'} after "
    text += f"{evidence['tokens']:,} tokens, strongest bet {evidence['strongest_bet']!r}, "
    text += f"no bet at {evidence['without_bet']:,}"
    if evidence["rejected_at"] is not None:
        text += f", rejected after {evidence['rejected_at']:,}"
    if evidence["impossible"]:
        text += f", {evidence['impossible']:,} tokens that the target cannot emit"
    if evidence["rounding"]["over_tolerance"] > 1:
        largest = evidence["rounding"]["largest"]
        text += f"; rounding of {largest:.2g} exceeds the tolerance, so set protocol.tolerance above it"
    return text


def _growth(factors: Sequence[np.ndarray], bet: int) -> dict[str, float | None] | None:
    """log10 M of a bet in 1,000 tokens, 95% interval by bootstrap over texts; None where it is infinite. One text has
    None for both ends of the interval."""
    gains = np.array([text[:, bet].sum() / math.log(10) for text in factors])
    if not np.isfinite(gains).all():
        return None
    growth: Estimate | None = ratio_of_sums(1000 * gains, np.array([len(text) for text in factors]))
    return None if growth is None else {name: _finite(value) for name, value in dataclasses.asdict(growth).items()}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None  # JSON has no infinity


def _fresh(context: ModelContext, number: int) -> Request:
    request = context.requests[number % len(context.requests)]
    return dataclasses.replace(request, seed=request_seed(context.seed, f"eprocess/{number}/{request.name}"))


def _rows(mixture: np.ndarray, by_bet: np.ndarray) -> list[tables.PathRow]:
    kept = np.unique(np.linspace(0, len(mixture) - 1, POINTS).astype(int))
    named = [("all bets", mixture), *zip(bets(), by_bet.T, strict=True)]
    return [tables.PathRow(int(i) + 1, name, float(path[i] / math.log(10))) for name, path in named for i in kept]
