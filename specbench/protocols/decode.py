"""The protocol ``decode``: decode the workload speculatively and plainly, in turns, and measure both.

Plain decoding is timed in the same run, batch by batch and in alternating order, so that a machine that warms up or is
disturbed treats both alike. Times are wall-clock and end to end: prompts, drafting, verification and all bookkeeping.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from specbench.decoding import Completion, Decoder, Request
from specbench.errors import ConfigError
from specbench.metrics.acceptance import acceptance_histogram, position_rates, totals_by_prompt
from specbench.metrics.intervals import Estimate, ratio_of_sums, speedup
from specbench.plots import decode as plots
from specbench.progress import track
from specbench.protocols.base import ModelContext, Outcome, Table
from specbench.protocols.empirical import CheckSettings, check_first_tokens
from specbench.protocols.record import recorded
from specbench.replay.trace import TRACE, Trace
from specbench.results import EMPIRICAL, EMPIRICAL_SCHEMA, STEP_SCHEMA, STEPS, TEXT_SCHEMA, TEXTS


@dataclass(frozen=True)
class Timed:
    """One batch decoded one way."""

    completions: list[Completion]
    seconds: float

    @property
    def tokens(self) -> int:
        return sum(len(completion.token_ids) for completion in self.completions)


class DecodeProtocol:
    """See the module.

    Args:
        warmup: times the first batch is decoded both ways before the clock starts.
        check: settings of the empirical-against-target check.
    """

    needs_models = True
    times = True

    def __init__(self, warmup: int, check: Mapping[str, Any]):
        if warmup < 0:
            raise ConfigError("protocol.warmup", warmup, "below 0", "Use 0 for no warm-up.")
        self.warmup = warmup
        self.check = CheckSettings(**check)

    def run(self, context: ModelContext) -> Outcome:
        """Decodes, measures, checks; see :class:`specbench.protocols.base.MeasurementProtocol`."""
        speculative = Decoder(context.target, context.drafter, context.verifier, context.gamma, context.pair.stop_ids)
        plain = Decoder(context.target, None, None, 0, context.pair.stop_ids)
        pairs = self._decode(context, plain, speculative)
        completions = [c for _, timed in pairs for c in timed.completions]
        steps = pd.DataFrame([dataclasses.asdict(s) for c in completions for s in c.steps]).rename(
            columns={"name": "prompt"}
        )
        check, empirical = check_first_tokens(context, self.check)
        has_probabilities = context.drafter.engine is not None
        scored = recorded(context, context.requests, completions) if has_probabilities else None
        measured = {
            **acceptance_fields(steps, context.gamma),
            **overlap_fields(None if scored is None else scored.trace),
            **speed_fields(pairs, speculative.stopwatch.seconds),
            **check,
        }
        figures = {
            "acceptance_histogram": plots.acceptance_histogram(measured["acceptance_histogram"], context.title),
            "position_rates": plots.position_rates(measured["joint_rates"], measured["conditional_rates"]),
        }
        if empirical:
            figures["empirical_against_target"] = plots.empirical_against_target(pd.DataFrame(empirical))
        return Outcome(
            f"{measured['acceptance_length']:.2f} tokens a step, {measured['speedup']:.2f} times plain decoding",
            measured,
            {
                STEPS: Table(steps.to_dict("records"), STEP_SCHEMA),
                EMPIRICAL: Table(empirical, EMPIRICAL_SCHEMA),
                TEXTS: Table([_text(context, c) for c in completions], TEXT_SCHEMA),
                **({} if scored is None else {TRACE: scored.table}),
            },
            figures,
        )

    def _decode(self, context: ModelContext, plain: Decoder, speculative: Decoder) -> list[tuple[Timed, Timed]]:
        requests, size = context.requests, context.batch_size
        batches = [requests[i : i + size] for i in range(0, len(requests), size)]
        for _ in range(self.warmup):
            plain.run(batches[0])
            speculative.run(batches[0])
        speculative.stopwatch.seconds.clear()
        pairs = []
        for number, batch in enumerate(track(batches, "decoding")):
            if number % 2 == 0:
                first, second = decode_timed(plain, batch), decode_timed(speculative, batch)
                pairs.append((first, second))
            else:
                first, second = decode_timed(speculative, batch), decode_timed(plain, batch)
                pairs.append((second, first))
        return pairs


def decode_timed(decoder: Decoder, batch: Sequence[Request]) -> Timed:
    """Decodes one batch to its end under the clock."""
    decoder.target.synchronize()
    started = time.perf_counter()
    completions = decoder.run(batch)
    decoder.target.synchronize()
    return Timed(completions, time.perf_counter() - started)


def acceptance_fields(steps: pd.DataFrame, gamma: int) -> dict[str, Any]:
    """RunRow's acceptance columns, from the step log."""
    totals = totals_by_prompt(steps)
    rates = position_rates(steps, gamma)
    count = totals["steps"].to_numpy()
    return {
        "tokens": int(totals["emitted"].sum()),
        "steps": int(count.sum()),
        "drafted": int(totals["drafted"].sum()),
        "accepted": int(totals["accepted"].sum()),
        "acceptance_histogram": acceptance_histogram(steps, gamma),
        "joint_rates": rates.joint,
        "conditional_rates": rates.conditional,
        **_columns("acceptance_rate", ratio_of_sums(totals["accepted"].to_numpy(), totals["drafted"].to_numpy())),
        **_columns("acceptance_length", ratio_of_sums(totals["accepted"].to_numpy() + count, count)),
    }


def overlap_fields(trace: Trace | None) -> dict[str, Any]:
    """sum_x min(p(x), q(x)) at every emitted position; None where the drafter has no probabilities."""
    if trace is None:
        return _columns("overlap", None)
    sums = np.add.reduceat(trace.columns["overlap"].astype(float), trace.starts[:-1])
    return _columns("overlap", ratio_of_sums(sums, trace.lengths))


def speed_fields(pairs: Sequence[tuple[Timed, Timed]], phases: Mapping[str, float]) -> dict[str, Any]:
    """RunRow's speed columns; the phases are those of the speculative decoder."""
    plain, speculative = [p for p, _ in pairs], [s for _, s in pairs]
    tokens, seconds = np.array([s.tokens for s in speculative]), np.array([s.seconds for s in speculative])
    plain_tokens, plain_seconds = np.array([p.tokens for p in plain]), np.array([p.seconds for p in plain])
    ratio = speedup(tokens, seconds, plain_tokens, plain_seconds)
    return {
        "seconds": float(seconds.sum()),
        "tokens_per_second": float(tokens.sum() / seconds.sum()),
        "plain_tokens": int(plain_tokens.sum()),
        "plain_seconds": float(plain_seconds.sum()),
        "plain_tokens_per_second": float(plain_tokens.sum() / plain_seconds.sum()),
        **_columns("speedup", ratio),
        **{f"seconds_{phase}": float(phases.get(phase, 0.0)) for phase in ("draft", "target", "verify")},
        "seconds_rest": float(seconds.sum() - sum(phases.values())),
    }


def _columns(name: str, estimate: Estimate | None) -> dict[str, float | None]:
    if estimate is None:
        return {name: None, f"{name}_low": None, f"{name}_high": None}
    return {name: estimate.value, f"{name}_low": estimate.low, f"{name}_high": estimate.high}


def _text(context: ModelContext, completion: Completion) -> dict[str, Any]:
    decode = context.pair.tokenizer.decode
    return {
        "prompt": completion.request.name,
        "text": decode(list(completion.request.prompt), skip_special_tokens=True),
        "completion": decode(completion.token_ids, skip_special_tokens=True),
        "tokens": len(completion.token_ids),
        "finished": completion.finished,
    }
