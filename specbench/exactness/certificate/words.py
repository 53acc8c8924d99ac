"""The sentences of a certificate. Each is made of numbers that stand in its tables, and says no more than they do."""

from __future__ import annotations

from specbench.core.rounding import about, least, most
from specbench.exactness.certificate.caveats import caveats, of_habits, of_lossy_rule, of_time
from specbench.exactness.draws.probes import COUNTED, LOCATED, RULE
from specbench.exactness.enumeration.row import LocatedRow
from specbench.exactness.evidence import Evidence
from specbench.exactness.results import COMPARES, FORM, HARD, LAW, Bound, Row, StratumRow, uncontradicted
from specbench.exactness.settings import Settings
from specbench.exactness.statistics.power import CONFIDENCE
from specbench.exactness.trials.run import ALL, LARGE
from specbench.exactness.verdict import (
    BROKEN,
    LOSSLESS,
    NOT_LOSSLESS,
    NOT_REJECTED,
    ROUNDING,
    Verdict,
    altered,
    names_another_rule,
)

SURE = f"{CONFIDENCE:.0%}"
_ROW_ASSUMPTION = (
    "This assumes that the code emits one token between two probes that give this token, and that its draw after a "
    "refusal does not depend on the refused token."
)
EXACT = 1e-11  # total variation a step: what float64 arithmetic and the resolution of uniforms cost


def headline(verdict: Verdict, evidence: Evidence) -> str:
    """The verdict in a line."""
    line = _headline(verdict, evidence)
    return line if evidence.interrupted is None else f"{line}; interrupted {evidence.interrupted}"


def _headline(verdict: Verdict, evidence: Evidence) -> str:
    if verdict.kind == BROKEN:
        return f"{BROKEN}: {(evidence.fault or '').split('. ')[0]}"
    if verdict.kind == LOSSLESS:
        small, drawn = most(verdict.tv), most(verdict.inputs_tv)
        return f"{LOSSLESS} up to {small} a step on {_tried(evidence)}, {drawn} over D"
    if verdict.kind == NOT_REJECTED and evidence.bounds:
        small, drawn = (most(tv) if tv is not None else "unknown" for tv in (verdict.tv, verdict.inputs_tv))
        other = ", but its tokens are not those of the rule that it names" if names_another_rule(evidence) else ""
        return f"{NOT_REJECTED}{other}; TV at most {small} a step on {_tried(evidence)}, {drawn} over D"
    if verdict.located is not None:
        return f"{NOT_LOSSLESS}: TV {about(verdict.located.located)} a step on {verdict.located.fixture}"
    return verdict.kind if verdict.row is None else f"{NOT_LOSSLESS}: {_by_test(verdict.row)}"


def _by_test(row: Row) -> str:
    if row.test == LAW:
        return f"its rule's formulas are not the target's on {row.statistic:,.0f} of {row.draws:,} requests of D"
    if row.test == FORM:
        wrong = f"{row.statistic:,.0f} of {row.draws:,} requests on {row.fixture}"
        return f"{wrong} get a result that no lossless verifier gives"
    return f"rejected by {row.test} on {row.fixture}"


def sentences(verdict: Verdict, evidence: Evidence, settings: Settings) -> list[str]:
    """What was found, most important first."""
    if verdict.kind == BROKEN:
        return _of_fault(evidence)
    if verdict.kind == NOT_LOSSLESS:
        return [
            *_rejections(verdict, evidence, settings),
            *of_lossy_rule(evidence),
            *_where_in_d(evidence),
            *_proofs(evidence),
            *of_habits(evidence),
            *of_time(evidence),
        ]
    if not evidence.bounds and evidence.interrupted is not None:
        return [*of_time(evidence), "No request was judged before, so that nothing is known of the verifier."]
    if not evidence.bounds:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in evidence.unsupported.items())
        return [f"The verifier took none of the small pairs, so that nothing is known of it. {reasons}".strip()]
    return [
        "No test rejects the verifier. All tests together reject an exact one with a probability of at most "
        f"{settings.false_alarm:g}.",
        *_bounds(evidence),
        *_of_inputs(evidence),
        *([row_sentence(evidence.row)] if evidence.row is not None else []),
        *_of_use(evidence),
        *_proofs(evidence),
        *of_habits(evidence),
        *caveats(verdict, evidence),
    ]


def _of_fault(evidence: Evidence) -> list[str]:
    drawn = max((row.draws for row in evidence.rows), default=0)
    seen = f"Before that it verified {drawn:,} requests; the tables below have what they showed."
    return [f"Broken. {evidence.fault}", *([seen] if drawn else [])]


def _rejections(verdict: Verdict, evidence: Evidence, settings: Settings) -> list[str]:
    sentences = []
    if verdict.located is not None:
        bound = verdict.located
        sentences.append(
            f"Not lossless: the thresholds of the code imply a bias of {about(bound.located)} a step on the small pair "
            f"{bound.fixture!r}. {bound.differing:,} of {bound.draws:,} requests have other tokens than these "
            f"thresholds imply, so that the bias is {least(bound.least)} or more. Up to {ROUNDING:g} would be rounding."
        )
    if verdict.row is not None:
        row = verdict.row
        lead = "It is also rejected" if sentences else "Not lossless: it is rejected"
        sentences.append(
            f"{lead} by the test {row.test!r} on {row.fixture!r} {_how(row, settings)}. It compares "
            f"{COMPARES[row.test]}."
        )
    others = sorted({f"{row.test!r} on {row.fixture!r}" for row in evidence.rejected if row is not verdict.row})
    if others:
        more = f" and {len(others) - 4} more" if len(others) > 4 else ""
        sentences.append(f"Other tests that reject it: {', '.join(others[:4])}{more}.")
    return sentences


def _how(row: Row, settings: Settings) -> str:
    if row.test in HARD:
        return f"in {row.statistic:,.0f} of {row.draws:,} requests"
    seen = f"p = {row.p_value:.2g}, false alarm {settings.false_alarm:g} for all tests together"
    return f"after {row.rejected_at or row.draws:,} requests ({seen})"


def _bounds(evidence: Evidence) -> list[str]:
    bounds, calls, sentences = evidence.bounds, evidence.calls, []
    located, rule, counted = ([bound for bound in bounds if bound.method == name] for name in (LOCATED, RULE, COUNTED))
    if located:
        differing = sum(bound.differing for bound in located)
        others = f"{differing:,} have" if differing else "none has"
        sentences.append(
            f"Small pairs: the thresholds of the code were located on {len(located)} of them, and imply a bias of at "
            f"most {most(_largest(located, 'located'))} a step. In {_requests(located)}, {others} other "
            f"tokens than these thresholds imply. If requests fail one by one, what the search missed adds at most "
            f"{most(_largest(located, 'hidden'))} ({SURE}, all pairs together)."
        )
    if rule:
        counts_say_more = "(by counts, where these say more) " if any(bound.by_counts for bound in rule) else ""
        sentences.append(
            f"Small pairs: tokens were compared with the formulas of the rule on {len(rule)} of them. In "
            f"{_requests(rule)} they are the same{_but_for(rule)}. If requests fail one by one, the bias is "
            f"{counts_say_more}at most {most(_largest(rule, 'tv'))} ({SURE}, all pairs together)."
        )
    if counted:
        sentences.append(
            f"Small pairs: tokens were only counted on {len(counted)} of them. The code draws by itself, uses "
            f"its uniforms in an unknown order, or is too slow for more. Counts of {_requests(counted)} show no bias, "
            f"which is then at most {most(_largest(counted, 'tv'))} ({SURE}, all pairs together)."
        )
    if calls is not None:
        failed = f"{calls.differing:,} calls have" if calls.differing else "No call has"
        some = ", but for pairs where counts say more," if any(bound.counts_say_more for bound in bounds) else ""
        sentences.append(
            f"Small pairs, whole calls: these requests{some} came in {calls.calls:,} calls of up to "
            f"{evidence.batch:,} requests. {failed} a request with unexpected tokens. Even if whole calls fail at "
            f"once, at most {most(calls.code)} of a call's requests have unexpected tokens, in the mean over these "
            f"calls ({SURE})."
        )
    return sentences


def _of_inputs(evidence: Evidence) -> list[str]:
    """What calls drawn from D say."""
    rows = {row.stratum: row for row in evidence.inputs}
    whole, large = rows.get(ALL), rows.get(LARGE)
    if whole is None or not whole.calls:
        return []
    drawn = f"{whole.calls:,} calls were drawn from it (inputs_seed {evidence.inputs_seed})"
    if whole.code is None:
        return [
            f"D: {drawn}. There is no rule to compare their tokens with, so that these were counted in 8 cells along 5 "
            "orders of the ids, stratum by stratum. In the mean over strata, the distribution of a token's cell is "
            f"within {most(whole.along)} of the target's ({SURE}). A bias within the cells does not show."
        ]
    met = "All their tokens are the rule's"
    if whole.differing_calls:
        met = (
            f"{whole.differing:,} requests of {whole.differing_calls:,} calls have other tokens than the rule's, "
            f"{whole.rounding:,} of them by rounding"
        )
    with_large = f", and at most {most(large.code)} over vocabularies of 32,000 tokens or more" if large else ""
    sentences = [
        f"D: {drawn}. {met}. So at most {most(whole.code)} of a call's requests have other tokens than the rule's, in "
        f"the mean over D ({SURE}){with_large}."
    ]
    if whole.rule_checked:
        sentences.append(_of_rule(whole))
    return sentences


def _where_in_d(evidence: Evidence) -> list[str]:
    """Which strata hold the requests of D whose tokens are not the rule's."""
    rows = [row for row in evidence.inputs if row.structural and row.stratum not in (ALL, LARGE)]
    if not rows:
        return []
    most_of = sorted(rows, key=lambda row: (row.structural or 0) / row.requests, reverse=True)
    named = ", ".join(f"{row.structural:,} of {row.requests:,} requests in {row.stratum!r}" for row in most_of[:3])
    more = f" and in {len(rows) - 3} strata more" if len(rows) > 3 else ""
    return [f"D: beyond rounding, the tokens are not the rule's in {named}{more}."]


def row_sentence(row: LocatedRow) -> str:
    """What the located law of a step for one pair of rows says."""
    moved = f"{row.displaced:,} are displaced, by up to {row.largest:.1e}" if row.displaced else "none is displaced"
    ended = " The time limit came before all were located." if row.cut else ""
    return (
        f"One pair of rows of {row.vocabulary:,} tokens: the bias of a step is at most {row.upper:.1e}. The "
        f"{row.edges:,} thresholds of the rule were probed on both sides, and {moved}.{ended} {_ROW_ASSUMPTION}"
    )


def _of_use(evidence: Evidence) -> list[str]:
    """What many calls of one object changed."""
    use = evidence.long_use
    if use is None:
        return []
    compared = f"{use.requests + use.new_requests:,} requests"
    lead = f"Long use: {compared} were verified after {use.calls:,} calls of one object in mixed shapes."
    if not altered(use):
        return [f"{lead} All have the tokens that they had before, or that an unused object or the rule gives them."]
    counts = {
        "their first tokens": use.changed,
        "an unused copy's": use.unlike_fresh,
        "the rule's": use.unlike_rule if use.unlike_fresh is None else 0,
        "their own at once": use.unsteady,
        "their first tokens in between": use.changed_between,
    }
    words = "; ".join(f"not {name}: {count:,}" for name, count in counts.items() if count)
    first = "" if use.first_changed is None else f", first seen after {use.first_changed:,} calls"
    return [f"{lead} It is not called lossless, because some have other tokens then{first} ({words})."]


def _of_rule(whole: StratumRow) -> str:
    lead = (
        "The rule is not registered as proved. So its formulas were compared with the target, on one request of each "
        f"of {whole.rule_checked:,} calls"
    )
    if whole.rule is None:
        return (
            f"{lead}. On others the formulas have no closed form along one path, or give a request something else in "
            "its batch than alone; there the rule is judged by counts."
        )
    wrong = f", and are not the target's distribution on {whole.rule_wrong:,}" if whole.rule_wrong else ""
    both = f"code and rule together are at most {most(whole.code)} + {most(whole.rule)} = {most(whole.tv)} a step"
    return (
        f"{lead}: they differ by at most {most(whole.rule_largest)} a step{wrong}. In the mean over D, {both} from the "
        f"target ({SURE} each)."
    )


def _proofs(evidence: Evidence) -> list[str]:
    bounds = uncontradicted(evidence.bounds, evidence.rejected, evidence.habits)
    proved = [bound for bound in bounds if bound.proved and bound.located is not None]
    if not proved:
        return []
    largest = _largest(proved, "located")
    lead = "Exact" if largest <= EXACT else "Proved"
    return [
        f"{lead} on {_pairs(len(proved))}: the bias there is proved to be at most {most(largest)}, if the code does "
        "the same at every call. Its own tensor operations were run over whole intervals of its uniforms."
    ]


def _largest(rows: list[Bound], name: str) -> float:
    return max(getattr(row, name) or 0.0 for row in rows)


def _pairs(count: int) -> str:
    return f"{count} small pair{'s' if count > 1 else ''}"


def _tried(evidence: Evidence) -> str:
    """The pairs of distributions that a bound is of; of other pairs it says nothing."""
    return f"the {_pairs(len(evidence.bounds))} tried"


def _requests(bounds: list[Bound]) -> str:
    draws = [bound.draws for bound in bounds]
    some = f"{min(draws):,}" if min(draws) == max(draws) else f"{min(draws):,} to {max(draws):,}"
    return f"{some} requests on each" if len(bounds) > 1 else f"{some} requests on it"


def _but_for(rows: list[Bound]) -> str:
    differing, rounding = (sum(getattr(row, name) or 0 for row in rows) for name in ("differing", "rounding"))
    if not differing:
        return ""
    return f", but for {differing:,} of which {rounding:,} differ by rounding"
