"""The protocol ``agreement``: does a verifier emit the tokens of another one from the same streams?

The other one is its rule's plain code (``reference``) unless one is named. Both get synthetic logits of the run's own
sampler, gamma, batch size and dtype. The first verifier's rule explains the differences; those of a rule without
formulas are counted only. A difference that rounding does not explain fails the run.
"""

import time
from typing import Any

import torch
from scipy import stats

from specbench.benchmark.draws import DrawCounts, count_draws
from specbench.benchmark.grid import LIMITS, PLAIN, CaseSpec
from specbench.benchmark.tables import AGREEMENT, AGREEMENT_SCHEMA, DIFFERENCES, AgreementRow, DifferenceRow
from specbench.core.checks import check_count
from specbench.core.errors import ConfigError
from specbench.core.machine.progress import progress, say
from specbench.metrics.intervals import CONFIDENCE
from specbench.protocols.protocol import Outcome, ParquetTable, RunContext
from specbench.protocols.settings import check_no_history
from specbench.rules.agreement import TOLERANCE
from specbench.rules.rule import rule_of, rules_with_formulas
from specbench.rules.verifier import Verifier

LISTED = 1000  # differences that are written down


class AgreementProtocol:
    """See the module.

    Args:
        vocabulary: tokens of the synthetic logits; gamma, batch_size, dtype and the sampler are the run's own.
        draws: at least this many are compared on them.
        steps: verifications of each request from the same logits.
        other: the verifier to compare with (``+verifier@protocol.other=block`` on the command line); None for the
            reference of the rule.

    Raises:
        ConfigError: a value that cannot work.
    """

    needs_models = False

    def __init__(self, vocabulary: int, draws: int, steps: int, other: Any = None):
        if not (other is None or isinstance(other, Verifier)):
            remedy = "Write +verifier@protocol.other=NAME, one of conf/verifier."
            raise ConfigError("protocol.other", type(other).__name__, "not a verifier", remedy)
        self.vocabulary, self.other = vocabulary, other
        self.draws, self.steps = check_count("protocol.draws", draws), check_count("protocol.steps", steps)
        check_count("protocol.vocabulary", vocabulary, *LIMITS["vocabulary"])

    @torch.inference_mode()
    def run(self, context: RunContext) -> Outcome:
        """Raises ConfigError if no other verifier is named and the rule has no reference, and for processors, which
        need texts."""
        check_no_history(context)
        other = self._other(context)
        row, counts = self._compare(context, other)
        return Outcome(
            _counted(row),
            {},
            {
                AGREEMENT: ParquetTable([row], AGREEMENT_SCHEMA),
                DIFFERENCES: ParquetTable(counts.differences[:LISTED], DifferenceRow),
            },
            failure=f"it does not emit the tokens of {row.twin}: {row.wrong:,} draws differ by more than rounding"
            if row.wrong
            else None,
        )

    def _other(self, context: RunContext) -> Verifier:
        rule = rule_of(context.verifier)
        other = self.other or rule.reference
        if other is None:
            raise ConfigError(
                "verifier",
                context.verifier_name,
                f"its rule {rule.name!r} has no twin that draws the same tokens",
                f"Choose one of rule {' or '.join(rules_with_formulas())}, give it a Rule with thresholds, or name "
                "another verifier: +verifier@protocol.other=NAME.",
            )
        return other

    def _compare(self, context: RunContext, other: Verifier) -> tuple[AgreementRow, DrawCounts]:
        dtype = str(context.dtype).removeprefix("torch.")
        spec = CaseSpec(context.batch_size, self.vocabulary, context.gamma, dtype, PLAIN, context.sampling)
        started = time.perf_counter()
        say(f"comparing {self.draws:,} draws on {spec.vocabulary:,} tokens")
        with progress("comparing draws", self.draws) as advance:
            counts = count_draws(
                context.verifier,
                other,
                spec,
                draws=self.draws,
                steps=self.steps,
                seed=context.seed,
                device=context.device,
                advance=advance,
            )
        return _row(context, other, spec, counts, time.perf_counter() - started), counts


def _row(context: RunContext, other: Verifier, spec: CaseSpec, counts: DrawCounts, seconds: float) -> AgreementRow:
    rule, differing = rule_of(context.verifier), len(counts.differences)
    explained = [one.excess for one in counts.differences if one.rounding and one.excess is not None]
    interval = stats.binomtest(differing, counts.draws).proportion_ci(CONFIDENCE, "exact")
    return AgreementRow(
        verifier=context.verifier_name,
        rule=rule.name,
        twin=type(other).__name__,
        vocabulary=spec.vocabulary,
        batch_size=spec.batch_size,
        gamma=spec.gamma,
        dtype=spec.dtype,
        logits=counts.logits,
        verifications=counts.verifications,
        draws=counts.draws,
        acceptance_rate=counts.accepted / counts.drafted if counts.drafted else None,
        differences=differing,
        rounding=len(explained) if rule.has_law else None,
        wrong=differing - len(explained) if rule.has_law else None,
        tolerance=TOLERANCE if rule.has_law else None,
        largest_rounding=max(explained, default=None),
        share=differing / counts.draws,
        share_low=float(interval.low),
        share_high=float(interval.high),
        seconds=seconds,
    )


def _counted(row: AgreementRow) -> str:
    text = f"{row.differences} differences from {row.twin} in {row.draws:,} draws, "
    if row.wrong is None:
        return f"{text}which the rule {row.rule!r} has no formulas to explain"
    return f"{text}{row.rounding} by rounding, {row.wrong} wrong"
