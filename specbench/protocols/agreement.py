"""The protocol ``agreement``: does a verifier emit the tokens of another one from the same streams?

The other one is its rule's plain code (``reference``) unless one is named. Each of two questions can be left out:

- Small fixtures, whose thresholds are known: where do the two part first, what stood at the fork, and is it rounding?
- Synthetic logits of the run's own sampler, gamma, batch size and dtype: on what share of draws do they differ?

The first verifier's rule explains the differences; those of a rule without formulas are counted only. A difference that
rounding does not explain fails the run.
"""

from __future__ import annotations

import json
import time
from typing import Any

import torch
from scipy import stats

from specbench.benchmark.draws import DrawCounts, count_draws
from specbench.benchmark.grid import LIMITS, PLAIN, CaseSpec
from specbench.benchmark.tables import AGREEMENT, AGREEMENT_SCHEMA, DIFFERENCES, AgreementRow, DifferenceRow
from specbench.core.checks import check_count
from specbench.core.errors import ConfigError
from specbench.core.machine.progress import progress, say, track
from specbench.exactness.differential import ROUNDING, STRUCTURAL, Comparison, Divergence, compare
from specbench.exactness.fixtures import greedy_fixture, small_fixtures
from specbench.metrics.exactness_rows import COMPARISONS, ComparisonRow
from specbench.metrics.intervals import CONFIDENCE
from specbench.protocols.protocol import Outcome, ParquetTable, RunContext
from specbench.protocols.settings import check_no_history
from specbench.rules.agreement import TOLERANCE
from specbench.rules.rule import rule_of, rules_with_formulas
from specbench.rules.verifier import Verifier

DIVERGENCES = "divergences.parquet"
LISTED = 1000  # differences that are written down, and divergences of a fixture
NO_DRAWS = "It is for synthetic logits, and protocol.draws=0 leaves them out."


class AgreementProtocol:
    """See the module.

    Args:
        vocabulary: tokens of the synthetic logits; gamma, batch_size, dtype and the sampler are the run's own.
        draws: at least this many are compared on them; 0 leaves them out.
        steps: verifications of each request from the same logits.
        requests: put before both on each small fixture; 0 leaves these out.
        other: the verifier to compare with (``+verifier@protocol.other=block`` on the command line); None for the
            reference of the rule.

    Raises:
        ConfigError: a value that cannot work.
    """

    needs_models = False

    def __init__(self, vocabulary: int, draws: int, steps: int, requests: int = 0, other: Any = None):
        if not (other is None or isinstance(other, Verifier)):
            remedy = "Write +verifier@protocol.other=NAME, one of conf/verifier."
            raise ConfigError("protocol.other", type(other).__name__, "not a verifier", remedy)
        self.vocabulary, self.other = vocabulary, other
        self.draws, self.steps = check_count("protocol.draws", draws, 0), check_count("protocol.steps", steps)
        self.requests = check_count("protocol.requests", requests, 0)
        check_count("protocol.vocabulary", vocabulary, *LIMITS["vocabulary"])
        if draws == requests == 0:
            raise ConfigError("protocol.draws", 0, "protocol.requests is 0 too", "Set one of them above 0.")
        self.own_conditions = {} if draws else dict.fromkeys(("gamma", "sampler", "batch_size", "dtype"), NO_DRAWS)

    @torch.inference_mode()
    def run(self, context: RunContext) -> Outcome:
        """Raises ConfigError if no other verifier is named and the rule has no reference, and for processors, which
        need texts."""
        if self.draws:
            check_no_history(context)
        other = self._other(context)
        compared = self._on_fixtures(context, other) if self.requests else []
        listed = [divergence for comparison in compared for divergence in comparison.divergences[:LISTED]]
        divergences = [divergence for comparison in compared for divergence in comparison.divergences]
        total = Comparison("all", sum(comparison.requests for comparison in compared), divergences)
        first = _first(total)
        row, counts = self._on_draws(context, other) if self.draws else (None, DrawCounts())
        name = type(other).__name__
        headline = [*([_words(total, name)] if compared else []), *([_counted(row)] if row else [])]
        return Outcome(
            "; ".join(headline),
            {},
            {
                AGREEMENT: ParquetTable([row] if row else [], AGREEMENT_SCHEMA),
                DIFFERENCES: ParquetTable(counts.differences[:LISTED], DifferenceRow),
                COMPARISONS: ParquetTable([comparison.row() for comparison in compared], ComparisonRow),
                DIVERGENCES: ParquetTable(listed, Divergence),
            },
            documents={"first_divergence.json": json.dumps(vars(first) if first else None, indent=1)},
            failure=_failure(total, row, name),
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

    def _on_fixtures(self, context: RunContext, other: Verifier) -> list[Comparison]:
        fixtures = [*small_fixtures(), greedy_fixture()]
        say(f"comparing {self.requests * len(fixtures):,} requests of {len(fixtures)} small fixtures")
        return [
            compare(context.verifier, other, fixture, self.requests, context.seed, context.device)
            for fixture in track(fixtures, "comparing on fixtures")
        ]

    def _on_draws(self, context: RunContext, other: Verifier) -> tuple[AgreementRow, DrawCounts]:
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


def _failure(total: Comparison, row: AgreementRow | None, other: str) -> str | None:
    """Why the run should not exit with 0: differences that rounding does not explain."""
    first, wrong = _first(total), (row.wrong or 0) if row else 0
    if first is not None and first.cause == STRUCTURAL:
        return f"it does not emit the tokens of {other}; the two part first at {first.described(other)}"
    return f"it does not emit the tokens of {other}: {wrong:,} draws differ by more than rounding" if wrong else None


def _first(total: Comparison) -> Divergence | None:
    """The first divergence that rounding does not explain; failing that, the first."""
    wrong = (divergence for divergence in total.divergences if divergence.cause == STRUCTURAL)
    return next(wrong, next(iter(total.divergences), None))


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


def _words(total: Comparison, other: str) -> str:
    first = _first(total)
    if first is None:
        return f"the same tokens in {total.requests:,} requests of the small fixtures"
    return (
        f"{len(total.divergences):,} of {total.requests:,} requests of the small fixtures differ, "
        f"{total.count(ROUNDING):,} by rounding; the two part first at {first.described(other)}"
    )
