"""The verdict, from the evidence alone."""

from dataclasses import dataclass

from specbench.exactness.evidence import Evidence
from specbench.exactness.results import ALL, COUNTED, HARD, LARGE, LOCATED, Bound, LongUseRow, Row, StratumRow
from specbench.rules.agreement import TOLERANCE

LOSSLESS, NOT_LOSSLESS, NOT_REJECTED, BROKEN = "lossless", "not lossless", "not rejected", "broken"
# Total variation a step. Below the first a bias is what float32 arithmetic costs; bounds above the others, of requests
# on each small fixture, and of calls on all of them or over D, say too little for the word "lossless".
ROUNDING, MOST, MOST_OF_CALLS = TOLERANCE, 1e-3, 0.02


@dataclass(frozen=True)
class Verdict:
    """What follows.

    Attributes:
        kind: LOSSLESS (nothing is rejected or refused, its tokens depend on its arguments alone, on every small fixture
            it does what a model of known bias does, on calls of D it emits its rule's tokens but for rounding, and
            bounds are at most MOST and MOST_OF_CALLS), NOT_LOSSLESS (a test rejects it,
            or its bias is known to be above ROUNDING), BROKEN (it did what no verifier may), or NOT_REJECTED.
        tv: upper bound on the total variation a step on the small fixtures, in the mean over their calls, at 99%
            confidence; None where there is none.
        inputs_tv, large_tv: likewise in the mean over D, and over its large vocabularies.
        located: the fixture of the largest bias that is known, if it is above ROUNDING.
        row: the test that rejects it with the strongest evidence, if any does.
    """

    kind: str
    tv: float | None
    inputs_tv: float | None
    large_tv: float | None
    located: Bound | None
    row: Row | None


def verdict_of(evidence: Evidence) -> Verdict:
    biased = [bound for bound in evidence.bounds if bound.least > ROUNDING]
    located = max(biased, key=lambda bound: bound.least, default=None)
    row = strongest(evidence.rejected)
    of_requests, tv = _small(evidence)
    inputs_tv, large_tv = (None if row is None else row.tv for row in map(evidence.over, (ALL, LARGE)))
    kind = NOT_REJECTED
    if evidence.fault is not None:
        kind = BROKEN
    elif located is not None or row is not None:
        kind = NOT_LOSSLESS
    elif tv is not None and inputs_tv is not None and of_requests <= MOST and max(tv, inputs_tv) <= MOST_OF_CALLS:
        kind = NOT_REJECTED if _in_doubt(evidence) else LOSSLESS
    return Verdict(kind, tv, inputs_tv, large_tv, located, row)


def _small(evidence: Evidence) -> tuple[float, float | None]:
    """The largest bound of requests on a small fixture, and the bound of calls on all of them."""
    known = [bound.tv for bound in evidence.bounds if bound.tv is not None]
    if not known or len(known) < len(evidence.bounds):
        return 1.0, None
    if evidence.calls is None:
        return max(known), max(known)
    located = max(bound.located or 0.0 for bound in evidence.bounds if not bound.by_counts)
    return max(known), min(1.0, max(*known, located + evidence.calls.code))


def _in_doubt(evidence: Evidence) -> bool:
    """Whether something keeps a verifier that nothing rejects from being called lossless, whatever its bounds are."""
    return bool(
        evidence.interrupted is not None
        or evidence.unsupported
        or evidence.refusals
        or any(habit.differing for habit in evidence.habits)
        or any(
            bound.method == COUNTED or bound.impure or (bound.located or 0.0) > ROUNDING for bound in evidence.bounds
        )
        or names_another_rule(evidence)
        or (evidence.long_use is not None and altered(evidence.long_use))
    )


def altered(use: LongUseRow) -> int:
    """Requests that came out otherwise after long use than before, than of an unused copy, or than by the rule."""
    # Tokens that are not the rule's from the first call on are no matter of use.
    unlike = use.unlike_rule if use.unlike_fresh is None else use.unlike_fresh
    return max(use.unsteady, use.changed, use.changed_between, unlike or 0)


def other_tokens(evidence: Evidence) -> tuple[int, int, list[str]]:
    """Requests whose tokens are not those of the rule that it names, beyond rounding, of how many, and where."""
    counts = [(bound.fixture, bound.structural, bound.draws) for bound in evidence.bounds]
    counts += [(repr(habit.name), habit.structural, habit.requests) for habit in evidence.habits]
    counts += [(row.stratum, row.structural, row.requests) for row in evidence.strata]
    known = [(name, wrong, requests) for name, wrong, requests in counts if wrong is not None]
    where = [name for name, wrong, _ in known if wrong]
    return sum(wrong for _, wrong, _ in known), sum(requests for *_, requests in known), where


def names_another_rule(evidence: Evidence) -> bool:
    """Whether the tokens of a request are not those of the rule that it names, beyond rounding."""
    return other_tokens(evidence)[0] > 0


def strata_of_other_tokens(evidence: Evidence) -> list[StratumRow]:
    """The strata with requests whose tokens are not the rule's, beyond rounding, by falling share."""
    rows = [row for row in evidence.strata if row.structural]
    return sorted(rows, key=lambda row: (row.structural or 0) / row.requests, reverse=True)


def of_method(evidence: Evidence, method: str) -> list[Bound]:
    """The bounds that were found in a way."""
    return [bound for bound in evidence.bounds if bound.method == method]


def most_biased(bounds: list[Bound]) -> Bound | None:
    """The largest bias that was located, if it is more than rounding."""
    largest = max(bounds, key=lambda bound: bound.located or 0.0, default=None)
    return largest if largest is not None and (largest.located or 0.0) > ROUNDING else None


def other_rejections(verdict: Verdict, evidence: Evidence) -> list[str]:
    """The other tests that reject the verifier, apart from the verdict's own."""
    return sorted({f"{row.test!r} on {row.fixture!r}" for row in evidence.rejected if row is not verdict.row})


def unlike_formulas(evidence: Evidence) -> Bound | None:
    """The small pair on which the bias of the code differs most from that of its rule's formulas, beyond rounding."""
    gaps = {
        abs(bound.located - bound.rule_error): bound
        for bound in of_method(evidence, LOCATED)
        if bound.located is not None and bound.rule_error is not None
    }
    largest = max(gaps, default=0.0)
    return gaps[largest] if largest > ROUNDING else None


def breaks_lossy_rule(evidence: Evidence) -> bool:
    """Whether a verifier of a lossy rule does not follow it."""
    return evidence.lossy_rule and (names_another_rule(evidence) or unlike_formulas(evidence) is not None)


def strongest(rows: list[Row]) -> Row | None:
    """What cannot be chance first, then the smallest p-value, then the most draws."""
    return min(rows, key=lambda row: (row.test not in HARD, row.p_value, -row.draws), default=None)
