"""The protocol ``predict``: measure costs, record a trace, predict every gamma's speedup; then decode some and compare.

The prediction is complete before anything is decoded speculatively. The gamma that it recommends is always decoded,
since it is the trace that a user of predictions has. What went into a prediction is kept beside what was measured, term
by term, so that a miss has an address: steps taken, seconds a step, seconds a plain step, seconds of the prompts.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import pandas as pd

from specbench.core.checks import MOST_ROUNDS, MOST_SAMPLES, check_count
from specbench.core.errors import ConfigError
from specbench.core.machine.progress import track
from specbench.core.rounding import interval
from specbench.decoding import Request
from specbench.metrics.intervals import columns
from specbench.metrics.speed import speed_of
from specbench.protocols.cost import CostProtocol
from specbench.protocols.model_context import ModelContext, first_of_units, in_groups
from specbench.protocols.protocol import Conditions, Ignored, Outcome, ParquetTable, RunContext
from specbench.protocols.record import record, repeated
from specbench.protocols.rounds import speed_fields, timed_rounds
from specbench.protocols.scoring import draft_model
from specbench.protocols.settings import (
    OWN_SAMPLES,
    RoundSettings,
    check_decoded,
    check_draft_model,
    check_drafting,
    check_survival,
)
from specbench.replay.cost.forecast import MEASURED, PREDICTED, MeasuredRow, PredictedRow, cost_models, forecast
from specbench.replay.cost.model import COST, CostRow
from specbench.replay.trace import TRACE
from specbench.reports.plots import replay as plots
from specbench.rules.rule import rule_of


class PredictProtocol:
    """See the module.

    Args:
        gammas: draft lengths to predict.
        decoded: those of them that are decoded too, beside the one of the highest predicted speedup.
        samples: texts a prompt.
        warmup: batches decoded both ways before the clock starts.
        cost: settings of the protocol cost; the run's batch_size has to lie between its batches.
    """

    needs_models = True
    times = True
    ignored_parameters: ClassVar[Ignored] = OWN_SAMPLES
    own_conditions: ClassVar[Conditions] = {"gamma": "Use protocol.gammas and protocol.decoded."}

    def __init__(
        self, gammas: Sequence[int], decoded: Sequence[int], samples: int, warmup: int, cost: Mapping[str, Any]
    ):
        self.gammas, self.decoded = check_decoded(gammas, decoded, "predicted")
        check_drafting("protocol.gammas", self.gammas, "Add one above 0, such as 4.")
        self.samples = check_count("protocol.samples", samples, 1, MOST_SAMPLES)
        self.warmup = check_count("protocol.warmup", warmup, 0, MOST_ROUNDS)
        self.cost = CostProtocol(**cost)

    def precheck(self, context: RunContext) -> None:
        """Raises ConfigError for a rule without a replay, a batch size without a cost, or a drafter without a model."""
        check_survival(context)
        check_draft_model(context)
        size, least, most = context.batch_size, min(self.cost.batches), max(self.cost.batches)
        if not least <= size <= most:
            remedy = "Add it to protocol.cost.batches."
            raise ConfigError("batch_size", size, f"costs are measured from {least} to {most}", remedy)

    def run(self, context: ModelContext) -> Outcome:
        """Raises ConfigError for a drafter without a model, or contexts of protocol.cost without room for its steps."""
        rule, size = rule_of(context.verifier), context.batch_size
        draft_model(context)  # fails before anything is timed
        costs = self.cost.measure(context)
        models = cost_models(pd.DataFrame(costs))
        requests = repeated(context, self.samples)
        kept = record(context, requests, independent=True)
        prompts = {request.name: len(request.prompt) for request in requests}
        predicted = [forecast(kept.trace, rule, gamma, size, models, prompts) for gamma in self.gammas]
        advised = max(predicted, key=lambda row: row.speedup)
        decoded = sorted({*self.decoded, advised.gamma})
        measured = [measure(context, gamma, requests, self.warmup) for gamma in track(decoded, "decoding")]
        best = max(measured, key=lambda row: row.speedup)
        got = next(row for row in measured if row.gamma == advised.gamma)
        frames = [pd.DataFrame(rows).assign(verifier=context.verifier_name) for rows in (predicted, measured)]
        return Outcome(
            f"recommended: gamma {advised.gamma}, predicted "
            f"{interval(advised.speedup, advised.speedup_low, advised.speedup_high, '.3f')} times plain decoding, "
            f"measured {got.speedup:.3f}; best measured: gamma {best.gamma}, {best.speedup:.3f}",
            tables={
                TRACE: kept.table,
                COST: ParquetTable(costs, CostRow),
                PREDICTED: ParquetTable(predicted, PredictedRow),
                MEASURED: ParquetTable(measured, MeasuredRow),
            },
            figures={
                "predicted_speedup": plots.predicted_speedups(frames[0], frames[1]),
                "step_times": plots.step_times(pd.DataFrame(costs), models[0]),
            },
        )


def measure(context: ModelContext, gamma: int, requests: Sequence[Request], warmup: int) -> MeasuredRow:
    """One paired round of batches decoded plainly and speculatively.

    Args:
        requests: of :func:`repeated`. Texts of one prompt are decoded one after the other here.
    """
    size, passes = context.batch_size, in_groups(requests, len(context.requests))
    batches = context.batches([request for texts in zip(*passes, strict=True) for request in texts])
    timed = timed_rounds(context.decoder(0), context.decoder(gamma), batches, RoundSettings(1, 1, 0), size, warmup)
    speed, texts = speed_fields(timed), [text for _, run in timed.first for text in run.completions]
    speedup: Any = columns("speedup", speed_of(timed.times.summed(first_of_units(batches))).speedup)
    return MeasuredRow(
        gamma=gamma,
        batch=size,
        tokens_per_second=speed["tokens_per_second"],
        plain_tokens_per_second=speed["plain_tokens_per_second"],
        tokens_per_step=sum(len(text.token_ids) for text in texts) / sum(len(text.steps) for text in texts),
        step_seconds=(speed["seconds"] - speed["seconds_prompts"]) / sum(speed["batch_steps"]),
        plain_step_seconds=(speed["plain_seconds"] - speed["plain_seconds_prompts"]) / sum(speed["batch_plain_steps"]),
        start_seconds=speed["seconds_prompts"] / len(batches),
        batches=len(batches),
        batch_seconds=speed["seconds"] / len(batches),
        **speedup,
        **{name: speed[name] for name in ("seconds_draft", "seconds_target", "seconds_verify")},
    )
