"""The protocol ``replay_check``: record a trace, replay it, decode the same settings, and time all three.

The verifier's rule is what is replayed, so this also holds any verifier of a known rule to the acceptance that its rule
must have. The recorded texts are independent of the decoded ones. Each decoded text is scored as well, outside of the
timing: given its text, the number of steps that a run took has a known expectation, which is the sharper test. So have
the tokens that it drafted, and the accepted tokens that it kept: what a verifier accepted behind a stop token is not
counted, since the text does not tell of it (replay/summary.py says which numbers equal a decode run's).
"""

import time
from collections.abc import Sequence
from typing import ClassVar

import pandas as pd

from specbench.core.checks import MOST_ROUNDS, MOST_SAMPLES, check_count
from specbench.core.machine.progress import track
from specbench.protocols.model_context import ModelContext
from specbench.protocols.protocol import Conditions, Ignored, Outcome, ParquetTable, RunContext
from specbench.protocols.record import Recorded, record, recorded, repeated
from specbench.protocols.rounds import decode_timed
from specbench.protocols.settings import OWN_SAMPLES, check_decoded, check_draft_model, check_survival
from specbench.replay.renewal import replay
from specbench.replay.summary import POINTS, REPLAY, TIMINGS, PointRow, ReplayRow, TimingRow, replay_rows
from specbench.replay.trace import TRACE
from specbench.rules import RuleInfo
from specbench.rules.rule import rule_of


class ReplayCheckProtocol:
    """See the module.

    Args:
        gammas: draft lengths to replay.
        decoded: those of them that are decoded too.
        samples: texts a prompt.
        warmup: times the first batch is decoded before the clock starts.
    """

    needs_models = True
    times = True
    ignored_parameters: ClassVar[Ignored] = OWN_SAMPLES
    own_conditions: ClassVar[Conditions] = {"gamma": "Use protocol.gammas and protocol.decoded."}

    def __init__(self, gammas: Sequence[int], decoded: Sequence[int], samples: int, warmup: int):
        self.gammas, self.decoded = check_decoded(gammas, decoded, "replayed")
        self.samples = check_count("protocol.samples", samples, 1, MOST_SAMPLES)
        self.warmup = check_count("protocol.warmup", warmup, 0, MOST_ROUNDS)

    def precheck(self, context: RunContext) -> None:
        """Raises ConfigError for a verifier of a rule that has no replay, or a drafter without a model."""
        check_survival(context)
        check_draft_model(context)

    def run(self, context: ModelContext) -> Outcome:
        rule = rule_of(context.verifier)
        requests = repeated(context, self.samples)
        for _ in range(self.warmup):
            context.decoder(max(self.decoded)).run(requests[: context.batch_size])
        kept = record(context, requests, independent=True)
        started = time.perf_counter()
        rows = replay_rows(kept.trace, replay(kept.trace, rule, self.gammas))
        without = [
            TimingRow("sampling", None, len(kept.trace), kept.seconds_sampling),
            TimingRow("scoring", None, len(kept.trace), kept.seconds_scoring),
            TimingRow("replay", None, None, time.perf_counter() - started),
        ]
        points, decoding = list[PointRow](), list[TimingRow]()
        for gamma in track(self.decoded, "decoding"):
            decoder = context.decoder(gamma)
            timed = [decode_timed(decoder, batch) for batch in context.batches(requests)]
            tokens, seconds = sum(batch.tokens for batch in timed), sum(batch.seconds for batch in timed)
            decoding.append(TimingRow("decode", gamma, tokens, seconds))
            decoded = recorded(context, [completion for batch in timed for completion in batch.completions])
            points += _points(rule, gamma, decoded, self.samples)
        lengths = pd.DataFrame(points).groupby("gamma")[["tokens", "steps", "expected_steps"]].sum()
        worst = (lengths["tokens"] / lengths["steps"] - lengths["tokens"] / lengths["expected_steps"]).abs().max()
        share = sum(row.seconds for row in without) / sum(row.seconds for row in decoding)
        return Outcome(
            f"{len(self.gammas)} draft lengths replayed, {len(self.decoded)} decoded; on the decoded texts they differ "
            f"by at most {worst:.3f} tokens a step; recording and replaying took {share:.0%} of decoding's time",
            tables={
                TRACE: kept.table,
                REPLAY: ParquetTable(rows, ReplayRow),
                POINTS: ParquetTable(points, PointRow),
                TIMINGS: ParquetTable([*without, *decoding], TimingRow),
            },
        )


def _points(rule: RuleInfo, gamma: int, decoded: Recorded, samples: int) -> list[PointRow]:
    """What decoding took, beside what replaying each text expects; a prompt has ``samples`` texts."""
    (expected,) = replay(decoded.trace, rule, [gamma])
    return [
        PointRow(
            rule=rule.name,
            gamma=gamma,
            prompt=text.request.name,
            sample=place % samples,
            tokens=len(text.token_ids),
            steps=len(text.steps),
            expected_steps=float(expected.steps[place]),
            drafted=sum(step.num_draft_tokens for step in text.steps),
            expected_drafted=float(expected.drafted[place]),
            accepted=sum(min(step.num_accepted, step.num_emitted) for step in text.steps),
            expected_accepted=float(expected.accepted[place]),
        )
        for place, text in enumerate(decoded.texts)
    ]
