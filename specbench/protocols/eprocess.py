"""The protocol ``eprocess``: evidence against losslessness from whole texts of a real pair, watched token by token.

Texts are decoded speculatively, then target and draft score them in one pass each, and the bets of
exactness/eprocess.py are settled. What is tested is the whole of drafting, scoring, verifying and committing, at
prefixes that occur.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from specbench.decoding import Completion, Decoder, Request
from specbench.errors import ConfigError
from specbench.exactness import tables
from specbench.exactness.eprocess import TEMPERED, TokenEvidence, bets, e_value, log_factors, paths
from specbench.plots import exactness as plots
from specbench.progress import track
from specbench.protocols.base import ModelContext, Outcome, Table
from specbench.provenance import environment, request_seed
from specbench.sampling import RowParams, logit_rows

POINTS = 400  # of each path that are written down


class EprocessProtocol:
    """See the module.

    Args:
        tokens: decoded at least, the workload again and again under fresh seeds.
        false_alarm: the evidence at which the verifier is rejected is its reciprocal.
    """

    needs_models = True

    def __init__(self, tokens: int, false_alarm: float):
        if tokens < 1:
            raise ConfigError("protocol.tokens", tokens, "below 1", "Use 1 or more; evidence grows with them.")
        if not 0 < false_alarm < 1:
            raise ConfigError("protocol.false_alarm", false_alarm, "not inside (0, 1)", "Use 1e-6.")
        self.tokens, self.false_alarm = tokens, false_alarm

    @torch.inference_mode()
    def run(self, context: ModelContext) -> Outcome:
        """See :class:`specbench.protocols.base.MeasurementProtocol`."""
        if context.sampling.greedy:
            raise ConfigError(
                "sampler.temperature", 0, "nothing is drawn at temperature 0", "Use a temperature above 0."
            )
        factors = []
        for completion in track(list(self._texts(context)), "settling the bets"):
            factors += [log_factors(token) for token in evidence(context, completion)]
        mixture, each = paths(np.array(factors))
        strongest = bets()[int(each.max(axis=0).argmax())]
        reached = e_value(mixture)
        rejected = reached >= -math.log10(self.false_alarm)
        verdict = "rejected" if rejected else "not rejected"
        words = f"{verdict}: log10 evidence {reached:.2f} after {len(factors):,} tokens, strongest bet {strongest!r}"
        rows = _rows(mixture, each)
        certificate = {
            "verifier": context.verifier_name,
            "verdict": verdict,
            "words": words,
            "log10_e_value": reached,
            "log10_e_values_of_bets": dict(zip(bets(), [e_value(path) for path in each.T], strict=True)),
            "tokens": len(factors),
            "false_alarm": self.false_alarm,
            "seed": context.seed,
            "command": context.command,
            "environment": environment(context.device),
        }
        return Outcome(
            words,
            {},
            {tables.EPROCESS: Table(rows, tables.EPROCESS_SCHEMA)},
            {"eprocess": plots.eprocess(rows, self.false_alarm, context.verifier_name)},
            {"e_certificate.json": json.dumps(certificate, indent=1)},
        )

    def _texts(self, context: ModelContext) -> Iterator[Completion]:
        decoder = Decoder(context.target, context.drafter, context.verifier, context.gamma, context.pair.stop_ids)
        decoded, number = 0, 0
        while decoded < self.tokens:
            batch = [_fresh(context, number + i) for i in range(context.batch_size)]
            for completion in decoder.run(batch):
                decoded += len(completion.token_ids)
                yield completion
            number += context.batch_size


def _fresh(context: ModelContext, number: int) -> Request:
    request = context.requests[number % len(context.requests)]
    return dataclasses.replace(request, seed=request_seed(context.seed, f"eprocess/{number}/{request.name}"))


def evidence(context: ModelContext, completion: Completion) -> list[TokenEvidence]:
    """What the bets need of every emitted token: one teacher-forced pass of both models."""
    emitted = len(completion.token_ids)
    device = context.target.device
    ids = torch.tensor(completion.token_ids, device=device)
    params = RowParams.of([completion.request.sampling], device)
    params = params.select(torch.zeros(emitted, dtype=torch.int64, device=device))
    p = logit_rows(context.target.score(completion.sequence[:-1])[-emitted:], params)
    probs = p.probs()
    log_p = p.prob(ids).log().tolist()
    draft = context.drafter.engine
    log_q = None
    if draft is not None:
        log_q = logit_rows(draft.score(completion.sequence[:-1])[-emitted:], params).prob(ids).log().tolist()
    log_tempered = torch.stack([probs.pow(a).sum(dim=-1).log() for a in TEMPERED], 1).tolist()
    top = (p.argmax == ids).tolist()
    bonus = _bonus(completion)
    return [
        TokenEvidence(log_p[i], None if log_q is None else log_q[i], top[i], tuple(log_tempered[i]), bonus[i])
        for i in range(emitted)
    ]


def _bonus(completion: Completion) -> list[bool]:
    """Whether each token came after a block that was accepted whole."""
    flags: list[bool] = []
    for step in completion.steps:
        whole = step.num_accepted == step.num_draft_tokens and step.num_emitted == step.num_accepted + 1
        flags += [False] * (step.num_emitted - 1) + [whole]
    return flags[: len(completion.token_ids)]


def _rows(mixture: np.ndarray, each: np.ndarray) -> list[dict[str, Any]]:
    kept = np.unique(np.linspace(0, len(mixture) - 1, POINTS).astype(int))
    named = [("all bets", mixture), *zip(bets(), each.T, strict=True)]
    return [
        {"token": int(i) + 1, "bet": name, "log10_value": float(path[i] / math.log(10))}
        for name, path in named
        for i in kept
    ]
