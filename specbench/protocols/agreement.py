"""The protocol ``agreement``: over how many draws does a verifier emit the tokens of its rule's plain twin?

The verifier and the twin (its rule's ``reference``: batched PyTorch in float64) verify the same steps from the same
streams, and every difference is classified: rounding at a threshold, or wrong. Logits are synthetic
(benchmark/synthetic.py) and made anew every so often; between, the same logits are drafted from and verified again with
other seeds, which lets their normalisers be computed once for the twin. The verifier under test gets them as an engine
would have them: the target's rows raw, the draft's with the normaliser known.

A draw is one decision that a uniform made: each drafted token that was accepted or rejected (those behind the first
rejection were not decided by the token rule, and are not counted), and each emitted token.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float64, Int64
from scipy import stats
from torch import Tensor

from specbench.benchmark.grid import PLAIN, CaseSpec
from specbench.benchmark.synthetic import POSITIONS, Case, make_case
from specbench.benchmark.tables import AGREEMENT, AGREEMENT_SCHEMA, DIFFERENCES, DIFFERENCES_SCHEMA
from specbench.checks import check_count
from specbench.errors import ConfigError
from specbench.metrics.intervals import CONFIDENCE
from specbench.progress import progress
from specbench.protocols.base import Outcome, RunContext, Table
from specbench.protocols.prechecks import check_no_processors
from specbench.rng import Stream, Streams
from specbench.rules import known
from specbench.rules.agreement import TOLERANCE, classify
from specbench.rules.rule import Rule
from specbench.sampling import logit_rows
from specbench.types import Draft, LogitRows, Verification
from specbench.verifiers import Verifier

_AT_ONCE = 128  # draft rows whose dense cumulative sums are held side by side
_LISTED = 1000  # differences written to differences.parquet


@dataclass
class Counts:
    """What was seen so far."""

    verifications: int = 0
    draws: int = 0
    drafted: int = 0
    accepted: int = 0
    logits: int = 0
    differences: list[dict[str, Any]] = field(default_factory=list)


class AgreementProtocol:
    """See the module.

    Args:
        vocabulary: tokens; gamma, batch_size, dtype and the sampler are the run's own.
        draws: at least so many are compared.
        steps: verifications of each request from the same logits.

    Raises:
        ConfigError: a value that cannot work.
    """

    needs_models = False

    def __init__(self, vocabulary: int, draws: int, steps: int):
        self.vocabulary = vocabulary
        self.draws, self.steps = check_count("protocol.draws", draws), check_count("protocol.steps", steps)

    def run(self, context: RunContext) -> Outcome:
        """Compares; see :class:`specbench.protocols.base.MeasurementProtocol`.

        Raises:
            ConfigError: a verifier whose randomness is its own, which has no twin; processors, which need texts.
        """
        check_no_processors(context)
        rule = known.of(context.verifier)
        twin = rule.reference
        if twin is None:
            raise ConfigError(
                "verifier",
                context.verifier_name,
                f"its rule {rule.name!r} has no twin that draws the same tokens",
                f"Choose one of rule {' or '.join(known.KNOWN)}, or give it a Rule with thresholds.",
            )
        dtype = str(context.dtype).removeprefix("torch.")
        spec = CaseSpec(context.batch_size, self.vocabulary, context.gamma, dtype, PLAIN, context.sampling)
        counts, started = Counts(), time.perf_counter()
        with progress("comparing draws", self.draws) as advance:
            while counts.draws < self.draws:
                before = counts.draws
                self._one_batch(context, rule, twin, spec, counts)
                advance(counts.draws - before)
        row = self._row(context, rule, spec, counts, time.perf_counter() - started)
        return Outcome(
            f"{row['differences']} differences from {row['twin']} in {row['draws']:,} draws, "
            f"{row['rounding']} by rounding, {row['wrong']} wrong",
            {},
            {
                AGREEMENT: Table([row], AGREEMENT_SCHEMA),
                DIFFERENCES: Table(counts.differences[:_LISTED], DIFFERENCES_SCHEMA),
            },
        )

    def _one_batch(self, context: RunContext, rule: Rule, twin: Verifier, spec: CaseSpec, counts: Counts) -> None:
        verifier, number = context.verifier, counts.logits
        case = make_case(spec, context.seed, number, context.device)
        normalised = logit_rows(case.target_logits, case.target_params)
        given = normalised if case.target_params.truncates else case.target()
        rows = case.inputs()[0].rows
        token_ids = drafts(case, self.steps)
        for step in range(self.steps):
            if counts.draws >= self.draws:
                break
            streams = streams_of(case, step)
            draft = Draft(token_ids[step], rows, case.num_draft_tokens, spec.gamma)
            expected = twin.verify(draft, normalised, streams)
            got = verifier.verify(draft, given, streams)
            same = (got.token_ids == expected.token_ids).all() & (got.num_accepted == expected.num_accepted).all()
            seen = torch.stack(
                [
                    expected.num_accepted.sum(),
                    rule.num_decided(expected.num_accepted, draft.num_draft_tokens).sum(),
                    same.long(),
                ]
            )
            accepted, decided, all_same = seen.tolist()  # the only wait for the device
            counts.verifications += spec.batch_size
            counts.drafted += len(draft.token_ids)
            counts.accepted += accepted
            counts.draws += decided + spec.batch_size
            if not all_same:
                differences = classify(rule, draft, normalised, streams, expected, got)
                counts.differences += [
                    {
                        "logits": number,
                        "step": step,
                        "request": int(b),
                        "twin_accepted": int(expected.num_accepted[b]),
                        "twin_emitted": int(expected.token_ids[b, expected.num_accepted[b]]),
                        "accepted": int(got.num_accepted[b]),
                        "emitted": _emitted(got, int(b)),
                        "excess": float(needed),
                        "rounding": bool(rounding),
                    }
                    for b, needed, rounding in zip(
                        differences.requests, differences.excess, differences.rounding, strict=True
                    )
                ]
        counts.logits += 1

    def _row(self, context: RunContext, rule: Rule, spec: CaseSpec, counts: Counts, seconds: float) -> dict[str, Any]:
        explained = [each["excess"] for each in counts.differences if each["rounding"]]
        found = len(counts.differences)
        interval = stats.binomtest(found, counts.draws).proportion_ci(CONFIDENCE, "exact")
        return {
            "verifier": context.verifier_name,
            "rule": rule.name,
            "twin": type(rule.reference).__name__,
            **{name: getattr(spec, name) for name in ("vocabulary", "batch_size", "gamma", "dtype")},
            "logits": counts.logits,
            "verifications": counts.verifications,
            "draws": counts.draws,
            "acceptance_rate": counts.accepted / counts.drafted if counts.drafted else None,
            "differences": found,
            "rounding": len(explained),
            "wrong": found - len(explained),
            "tolerance": TOLERANCE,
            "largest_rounding": max(explained, default=None),
            "share": found / counts.draws,
            "share_low": float(interval.low),
            "share_high": float(interval.high),
            "seconds": seconds,
        }


def streams_of(case: Case, step: int) -> Streams:
    """The uniforms of the case's requests at one of many steps; no two steps share a position."""
    return Streams(case.seeds, case.positions + POSITIONS * step, case.spec.gamma + 1)


def drafts(case: Case, steps: int) -> Int64[Tensor, "steps n"]:
    """Tokens drafted at each step: drawn from the draft's rows with that step's uniforms.

    The cumulative sums of a row are computed once for all steps; otherwise as sampling.sample does it.
    """
    batch, gamma = case.spec.batch_size, case.spec.gamma
    many = Streams(
        case.seeds.repeat(steps),
        torch.cat([streams_of(case, step).positions for step in range(steps)]),
        gamma + 1,
    )
    u = many.uniform(Stream.DRAFT)[:, :gamma].reshape(steps, batch * gamma).T
    rows = LogitRows(case.draft_logits, case.draft_temperature, case.draft_cutoff, case.draft_log_normalizer)
    chunks = torch.arange(batch * gamma, device=u.device).split(_AT_ONCE)
    drawn = [_draw_many(rows.select(chunk).probs(), u[chunk].contiguous()) for chunk in chunks]
    return torch.cat([case.token_ids.new_zeros(0, steps), *drawn]).T.contiguous()


def _draw_many(weights: Float64[Tensor, "n V"], u: Float64[Tensor, "n steps"]) -> Int64[Tensor, "n steps"]:
    cumulative = weights.cumsum(dim=-1)
    total = cumulative[:, -1:].contiguous()
    index = torch.searchsorted(cumulative, u * total, right=True)
    return torch.minimum(index, torch.searchsorted(cumulative, total, right=False))


def _emitted(outcome: Verification, b: int) -> int:
    """The token after the accepted ones; -1 where a wrong num_accepted points at none."""
    row, place = outcome.token_ids[b].tolist(), int(outcome.num_accepted[b])
    return row[place] if 0 <= place < len(row) else -1
