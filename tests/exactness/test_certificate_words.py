"""No sentence of a certificate may be contradicted by a number in it.

Certificates are made of all combinations of evidence, and each sentence is read back: it must be of a known form, and
what it says is computed again from the rows, by other code than that which wrote it.
"""

import math
import re

import pytest

from specbench.exactness.certificate import BROKEN, LOSSLESS, NOT_LOSSLESS, NOT_REJECTED
from specbench.exactness.evidence import Evidence
from specbench.exactness.habits import KINDS
from specbench.exactness.results import COMPARES, Bound, StratumRow
from tests.helpers.made_up_evidence import BOUNDS, INPUTS, ROWS, SETTINGS, certificate_of, evidences

ROUNDING = 1e-5


def at_least(text: str, value: float) -> bool:
    """A printed upper bound is no lower than the number it is of, and not much higher."""
    return value <= float(text) * (1 + 1e-9) and float(text) <= value * 1.11 + 1e-300


def counts(text: str) -> int:
    return int(text.replace(",", ""))


def says(m: re.Match, **numbers: int | float) -> bool:
    """Whether a sentence has these numbers: counts exactly, upper bounds (floats) to their safe side."""
    return all(
        at_least(m[name], value) if isinstance(value, float) else counts(m[name] or "0") == value
        for name, value in numbers.items()
    )


def of_method(evidence: Evidence, method: str) -> list[Bound]:
    return [row for row in evidence.bounds if row.method == method]


def largest(rows, name: str) -> float:
    return max((getattr(row, name) or 0.0 for row in rows), default=0.0)


def same_requests(text: str, rows: list[Bound]) -> bool:
    numbers = [counts(number) for number in re.findall(r"[\d,]*\d", text)]
    return (numbers[0], numbers[-1]) == (min(row.draws for row in rows), max(row.draws for row in rows))


def refuted(evidence: Evidence) -> bool:
    tested = any(row.gates and row.rejected_at is not None for row in evidence.rows)
    return tested or any(row.least > ROUNDING for row in evidence.bounds)


def located_sentence(m: re.Match, e: Evidence) -> bool:
    rows = of_method(e, "located")
    bounds = {"located": largest(rows, "located"), "hidden": largest(rows, "hidden")}
    differing = sum(row.differing for row in rows)
    good = same_requests(m["requests"], rows) and says(m, n=len(rows), times=differing, **bounds)
    return good and bool(m["nothing"]) == (differing == 0)


def calls_sentence(m: re.Match, e: Evidence) -> bool:
    met = 0 if m["met"] == "No" else counts(m["met"])
    some = any(row.method == "rule" and row.tv < row.hidden for row in e.bounds)
    met_them = (some, met) == (bool(m["counts"]), e.calls.differing)
    return met_them and says(m, calls=e.calls.calls, code=e.calls.code)


def small_tv(e: Evidence) -> float:
    """The bound of a headline: of calls, but for fixtures of which counts say more."""
    code = 0.0 if e.calls is None else e.calls.code
    compared = [row for row in e.bounds if row.hidden is not None and row.tv == pytest.approx(row.located + row.hidden)]
    return max(largest(e.bounds, "tv"), largest(compared, "located") + code if compared else 0.0)


def rule_sentence(m: re.Match, e: Evidence) -> bool:
    rows = of_method(e, "rule")
    by_counts = any(row.tv < row.hidden for row in rows)
    differing, rounding = (sum(getattr(row, name) or 0 for row in rows) for name in ("differing", "rounding"))
    good = says(m, n=len(rows), differing=differing, rounding=rounding, tv=largest(rows, "tv"))
    return good and same_requests(m["requests"], rows) and by_counts == bool(m["counts"])


def counted_sentence(m: re.Match, e: Evidence) -> bool:
    rows = of_method(e, "counted")
    return same_requests(m["requests"], rows) and says(m, n=len(rows), tv=largest(rows, "tv"))


def of_d(e: Evidence, name: str = "all of D") -> StratumRow:
    return next(row for row in e.inputs if row.stratum == name)


def drawn_sentence(m: re.Match, e: Evidence) -> bool:
    whole, large = of_d(e), of_d(e, "large vocabularies")
    columns = {name: getattr(whole, name) for name in ("differing_calls", "differing", "rounding", "code")}
    return int(m["seed"]) == e.inputs_seed and says(m, n=whole.calls, large=large.code, **columns)


def free_sentence(m: re.Match, e: Evidence) -> bool:
    whole = of_d(e)
    return whole.code is None and says(m, n=whole.calls, along=whole.along)


def own_rule_sentence(m: re.Match, e: Evidence) -> bool:
    whole = of_d(e)
    if m["free"]:
        return whole.rule is None and says(m, n=whole.rule_checked)
    good = says(m, n=whole.rule_checked, largest=whole.rule_largest, wrong=whole.rule_wrong)
    good &= says(m, code=whole.code, rule=whole.rule, tv=whole.tv)
    return good and math.isclose(whole.tv, whole.code + whole.rule, rel_tol=1e-6)


def use_sentence(m: re.Match, e: Evidence) -> bool:
    use = e.long_use
    wrong = use.changed or use.unlike_rule
    return says(m, calls=use.calls, n=use.requests + use.new_requests) and bool(wrong) == bool(m["wrong"])


def proved_sentence(m: re.Match, e: Evidence) -> bool:
    against = {row.fixture for row in e.rows if row.gates and row.rejected_at is not None}
    rows = [row for row in e.bounds if row.proved and row.differing == 0 and row.fixture not in against]
    exact = largest(rows, "located") <= 1e-11
    good = len(rows) > 0 and says(m, n=len(rows), located=largest(rows, "located"))
    return good and not any(row.differing for row in e.habits) and exact == (m["word"] == "Exact")


def biased_sentence(m: re.Match, e: Evidence) -> bool:
    row = next(row for row in e.bounds if row.fixture == m["fixture"])
    return (
        refuted(e)
        and row.located == max(other.located or 0 for other in e.bounds)
        and float(m["located"]) == pytest.approx(row.located, rel=0.06)
        and says(m, differing=row.differing, draws=row.draws)
        and ROUNDING < float(m["least"]) <= row.least
    )


def rejected_sentence(m: re.Match, e: Evidence) -> bool:
    row = next(row for row in e.rows if (row.fixture, row.test) == (m["fixture"], m["test"]))
    good = row.gates and row.rejected_at is not None and row.p_value == min(other.p_value for other in e.rows)
    good &= m["compares"] == COMPARES[row.test]
    if m["failed"]:
        return good and says(m, failed=int(row.statistic), of=row.draws) and row.statistic > 0
    return good and says(m, after=row.rejected_at) and float(m["p"]) == pytest.approx(row.p_value, rel=0.06)


def others_sentence(m: re.Match, e: Evidence) -> bool:
    named = re.findall(r"'(.+?)' on '(.+?)'", m["others"])
    rejected = {(row.test, row.fixture) for row in e.rows if row.gates and row.rejected_at is not None}
    return set(named) <= rejected and len(named) + int(m["more"] or 0) == len(rejected) - 1


def habit_sentence(m: re.Match, e: Evidence) -> bool:
    """Nothing that was tried beside it explains the difference."""
    (row,) = [row for row in e.habits if (KINDS[row.name].does, KINDS[row.name].when) == (m["what"], m["when"])]
    others = {other.name for other in e.habits if other.differing} & set(KINDS[row.name].excluded_by)
    return says(m, k=row.differing, n=row.requests) and row.differing > 0 and not others


def unproved_sentence(m: re.Match, e: Evidence) -> bool:
    named = set(re.findall(r"['\"](.+?)['\"](?:, |$)", m["names"]))
    rows = [row for row in e.habits if row.differing and row.name in named]
    differing = {row.name for row in e.habits if row.differing}
    return len(rows) == len(named) > 0 and all(differing & set(KINDS[row.name].excluded_by) for row in rows)


def judged_sentence(m: re.Match, e: Evidence) -> bool:
    return any(row.differing for row in e.habits) and bool(of_method(e, "located")) == bool(m["thresholds"])


def impure_sentence(m: re.Match, e: Evidence) -> bool:
    row = next(row for row in e.bounds if row.fixture == m["fixture"])
    return says(m, differing=row.differing, draws=row.draws, impure=row.impure) and row.impure > 0


def other_rule_sentence(m: re.Match, e: Evidence) -> bool:
    bounds = [row for row in e.bounds if row.structural is not None]
    compared = [row for row in [*e.inputs[:2], *e.habits] if row.structural is not None]
    wrong = sum(row.structural for row in [*bounds, *compared])
    requests = sum(row.draws for row in bounds) + sum(row.requests for row in compared)
    return says(m, k=wrong, n=requests) and wrong > 0


def perhaps_sentence(m: re.Match, e: Evidence) -> bool:
    row = next(row for row in e.bounds if row.fixture == m["fixture"])
    return row.located > ROUNDING and row.least <= ROUNDING


def wide_sentence(m: re.Match, e: Evidence) -> bool:
    rows = [of_d(e)] if m["place"] == "D" else e.bounds
    wrong = sum(row.structural or 0 for row in [*e.bounds, *e.inputs])
    tv = small_tv(e) if m["place"].startswith("calls") else largest(rows, "tv")
    return tv > float(m["limit"]) and bool(wrong) != bool(m["remedy"])


NUMBER, BOUND = r"[\d,]*\d", r"[\d.e+-]+"
BUT = rf"(?:, but for (?P<differing>{NUMBER}) of which (?P<rounding>{NUMBER}) differ by rounding)?"
SURE = r"\(99%, all pairs together"
FORMS = [
    (r"No test rejects the verifier\. All tests together reject an exact one with a probability of at most (?P<alarm>.+)\.",
     lambda m, e: not refuted(e) and float(m["alarm"]) == SETTINGS.false_alarm),
    (rf"Small pairs: the thresholds of the code were located on (?P<n>\d+) of them, and imply a bias of at most "
     rf"(?P<located>{BOUND}) a step\. In (?P<requests>[\d, to]+) requests on (?:each|it), (?:(?P<nothing>none has)|(?P<times>{NUMBER}) have) "
     rf"other tokens than these thresholds imply\. If requests fail one by one, what the search missed adds at most "
     rf"(?P<hidden>{BOUND}) {SURE}\)\.", located_sentence),
    (rf"Small pairs, whole calls: these requests(?P<counts>, but for pairs where counts say more,)? came in (?P<calls>{NUMBER}) "
     rf"calls of up to {NUMBER} requests\. (?P<met>No|{NUMBER}) calls? ha(?:s|ve) a request with unexpected tokens\. Even if whole calls fail at once, at most (?P<code>{BOUND}) of a call's "
     r"requests have unexpected tokens, in the mean over these calls \(99%\)\.", calls_sentence),
    (rf"Small pairs: tokens were compared with the formulas of the rule on (?P<n>\d+) of them\. In (?P<requests>[\d, to]+) requests "
     rf"on (?:each|it) they are the same{BUT}\. If requests fail one by one, the bias is (?P<counts>\(by counts, where these say "
     rf"more\) )?at most (?P<tv>{BOUND}) {SURE}\)\.", rule_sentence),
    (rf"Small pairs: tokens were only counted on (?P<n>\d+) of them\. The code draws by itself, uses its uniforms in an unknown "
     rf"order, or is too slow for more\. Counts of (?P<requests>[\d, to]+) requests on (?:each|it) show no bias, which is then at "
     rf"most (?P<tv>{BOUND}) {SURE}\)\.", counted_sentence),
    (rf"D: (?P<n>{NUMBER}) calls were drawn from it \(inputs_seed (?P<seed>\d+)\)\. (?:All their tokens are the rule's|"
     rf"(?P<differing>{NUMBER}) requests of (?P<differing_calls>{NUMBER}) calls have other tokens than the rule's, "
     rf"(?P<rounding>{NUMBER}) of them by rounding)\. So at most (?P<code>{BOUND}) of a call's requests have other tokens than the "
     rf"rule's, in the mean over D \(99%\), and at most (?P<large>{BOUND}) over vocabularies of 32,000 tokens or more\.",
     drawn_sentence),
    (rf"D: (?P<n>{NUMBER}) calls were drawn from it \(inputs_seed \d+\)\. There is no rule to compare their tokens with, so that these "
     r"were counted in 8 cells along 5 orders of the ids, stratum by stratum\. In the mean over strata, the distribution of a token's "
     rf"cell is within (?P<along>{BOUND}) of the target's \(99%\)\. A bias within the cells does not show\.", free_sentence),
    (rf"The rule is not registered as proved\. So its formulas were compared with the target, on one request of each of "
     rf"(?P<n>{NUMBER}) calls(?:(?P<free>\. On others the formulas have no closed form along one path, or give a request something "
     rf"else in its batch than alone; there the rule is judged by counts)|: they differ by at most (?P<largest>{BOUND}) a step"
     rf"(?:, and are not the target's distribution on (?P<wrong>{NUMBER}))?\. In the mean over D, code and rule together are at most "
     rf"(?P<code>{BOUND}) \+ (?P<rule>{BOUND}) = (?P<tv>{BOUND}) a step from the target \(99% each\))\.", own_rule_sentence),
    (rf"Long use: (?P<n>{NUMBER}) requests were verified after (?P<calls>{NUMBER}) calls of one object in mixed shapes\. (?:All have "
     r"the tokens that they had before, or that an unused object or the rule gives them|It is not called lossless, because "
     r"(?P<wrong>some have other tokens then)(?:, first seen after 5,000 calls)? \(.+\))\.", use_sentence),
    (rf"(?P<word>Exact|Proved) on (?P<n>\d+) small pairs?: the bias there is proved to be at most (?P<located>{BOUND}), if the code does "
     r"the same at every call\. Its own tensor operations were run over whole intervals of its uniforms\.", proved_sentence),
    (rf"Not lossless: the thresholds of the code imply a bias of (?P<located>{BOUND}) a step on the small pair '(?P<fixture>\w+)'\. "
     rf"(?P<differing>{NUMBER}) of (?P<draws>{NUMBER}) requests have other tokens than these thresholds imply, so that the bias is "
     rf"(?P<least>{BOUND}) or more\. Up to 1e-05 would be rounding\.", biased_sentence),
    (rf"(?:Not lossless: it is|It is also) rejected by the test '(?P<test>.+?)' on '(?P<fixture>\w+)' (?:in "
     rf"(?P<failed>{NUMBER}) of (?P<of>{NUMBER}) requests|after (?P<after>{NUMBER}) requests \(p = (?P<p>\S+), false alarm "
     r"1e-06 for all tests together\))\. It compares (?P<compares>.+)\.", rejected_sentence),
    (r"Other tests that reject it: (?P<others>.+?)(?: and (?P<more>\d+) more)?\.", others_sentence),
    (rf"It (?P<what>.+): (?P<k>{NUMBER}) of (?P<n>{NUMBER}) requests came out otherwise (?P<when>.+)\.", habit_sentence),
    (r"Its differences under (?P<names>.+) prove nothing more by themselves\.", unproved_sentence),
    (r"(?:(?P<thresholds>Thresholds say nothing of that, so)|So) it is judged by requests with real seeds, in batches\.",
     judged_sentence),
    (rf"On '(?P<fixture>\w+)', (?P<differing>{NUMBER}) of (?P<draws>{NUMBER}) requests have other tokens than the thresholds imply; "
     rf"(?P<impure>{NUMBER}) of them that were tried again, with the same uniforms given, have not\. So something beside the uniforms "
     r"decides: seeds, positions, other requests, earlier calls or noise of its own\.", impure_sentence),
    (rf"The tokens of (?P<k>{NUMBER}) of (?P<n>{NUMBER}) requests are not those of the rule that it names, which rounding does not "
     r"explain \(.+\)\.", other_rule_sentence),
    (r"It follows another rule, uses its uniforms in another order, or has a bug\. If the rule is your own, give the verifier a Rule "
     r"with its formulas, which are then compared with the target, and the tokens with them\.",
     lambda m, e: not any(row.rule_wrong for row in e.inputs)),
    (r"The formulas of its rule are not the target's distribution: mend these first\.",
     lambda m, e: of_d(e).rule_wrong > 0),
    (rf"The formulas of its rule have a bias of (?P<tv>{BOUND}) a step on the small pair 'long'\.",
     lambda m, e: float(m["tv"]) == pytest.approx(largest(of_method(e, "rule"), "located"), rel=0.06)),
    (r"State or noise of its own explains that: the tokens of a rule depend on the uniforms of `streams` alone\.",
     lambda m, e: {row.name for row in e.habits if row.differing} & {"called again", "another state of PyTorch's generator"}),
    (r"It accepts other numbers of tokens than the rule that it names \(on (?P<names>.+)\)\.",
     lambda m, e: set(m["names"].split(", "))
     == {row.fixture for row in e.rows if row.test == "acceptance" and row.rejected_at is not None}),
    (r"It refused these small pairs: (?P<names>.+)\.",
     lambda m, e: set(m["names"].split(", "))
     == {*e.unsupported}),
    (rf"It refused (?P<n>{NUMBER}) calls of D, of which nothing is known\. Most often: (?P<reason>.+)",
     lambda m, e: (counts(m["n"]), e.refusals[m["reason"]]) == (sum(e.refusals.values()), max(e.refusals.values()))),
    (r"It follows its lossy rule: no request and no bias on a small pair differs from the formulas'\.",
     lambda m, e: e.lossy_rule and not any(row.structural for row in e.bounds)
     and all(abs(row.located - row.rule_error) < 1e-5 for row in of_method(e, "located"))),
    (r"It does not follow its lossy rule\.", lambda m, e: e.lossy_rule),
    (rf"On the small pair '(?P<fixture>\w+)' the bias of the code is (?P<code>{BOUND}) a step, and that of the formulas "
     rf"(?P<formulas>{BOUND})\.",
     lambda m, e: any(row.fixture == m["fixture"] and float(m["code"]) == pytest.approx(row.located, rel=0.06)
                      and float(m["formulas"]) == pytest.approx(row.rule_error, rel=0.06) for row in e.bounds)),
    (r"It is not called lossless, because no call was drawn from D\.", lambda m, e: not e.inputs and not e.interrupted),
    (r"It is not called lossless, because the suite was interrupted\.", lambda m, e: e.interrupted),
    (r"Interrupted (?P<far>.+)\. Bounds and tests are of what was done by then\.", lambda m, e: m["far"] == e.interrupted),
    (r"No request was judged before, so that nothing is known of the verifier\.", lambda m, e: e.interrupted and not e.bounds),
    (rf"The thresholds on '(?P<fixture>\w+)' imply a bias of {BOUND} a step, more than the 1e-05 of rounding\. What the search missed "
     r"could make up for it; more requests will tell\.", perhaps_sentence),
    (rf"A bound above (?P<limit>{BOUND}) over (?P<place>requests on small pairs|calls of small pairs|D) is too large to call it "
     r"lossless\.(?P<remedy> More requests without a difference lower it\.)?", wide_sentence),
    (rf"D: beyond rounding, the tokens are not the rule's in (?P<k>{NUMBER}) of (?P<n>{NUMBER}) requests in "
     r"'tiny'\.", lambda m, e: says(m, k=e.inputs[0].structural, n=e.inputs[0].requests)),
    (r"It is not called lossless, because no bound over D is known: its rule has no formulas here, or it draws drafts by itself\. "
     r"If the rule is your own, give the verifier a Rule with its formulas\.",
     lambda m, e: of_d(e).tv is None and of_d(e).rule_checked == 0),
    (r"It is not called lossless, because no bound over D is known: on some calls the formulas of its rule have no closed form along "
     r"the drafted path, since a threshold reads later tokens or whole rows\. No setting changes that; quote the bound on small "
     r"pairs\.", lambda m, e: of_d(e).tv is None and of_d(e).rule_checked > 0),
    (r"A time limit ended early: (?P<what>.+)\. Bounds are of what was done by then\.",
     lambda m, e: m["what"].split(", ") == e.cut),
    (r"The verifier took none of the small pairs, so that nothing is known of it\..*", lambda m, e: not e.bounds),
    (r"Broken\. (?P<fault>.+)", lambda m, e: m["fault"] == e.fault),
    (rf"Before that it verified (?P<n>{NUMBER}) requests; the tables below have what they showed\.",
     lambda m, e: says(m, n=max(row.draws for row in e.rows))),
]  # fmt: skip


def check(sentence: str, evidence: Evidence) -> None:
    """Raises AssertionError for a sentence of no known form, or one that the evidence contradicts."""
    matches = [(match, holds) for form, holds in FORMS if (match := re.fullmatch(form, sentence))]
    assert len(matches) == 1, f"{len(matches)} forms for: {sentence}"
    match, holds = matches[0]
    assert holds(match, evidence), f"contradicted: {sentence}"


def check_headline(certificate, e: Evidence) -> None:
    head, _, far = certificate.headline.partition("; interrupted ")
    assert far == (e.interrupted or "")
    if certificate.verdict in (LOSSLESS, NOT_REJECTED) and e.bounds:
        count = len(e.bounds)
        assert f" a step on the {count} small pair{'s' if count > 1 else ''} tried, " in head
    if certificate.verdict == LOSSLESS:
        small, large = re.fullmatch(
            rf"lossless up to ({BOUND}) a step on the (?:\d+) small pairs tried, ({BOUND}) over D", head
        ).groups()
        assert at_least(small, small_tv(e))
        assert at_least(large, of_d(e).tv)
        assert e.interrupted is None
        assert e.long_use is None or e.long_use.changed == 0
        assert all(row.method != "counted" and row.impure == 0 for row in e.bounds)
        assert not any(habit.differing for habit in e.habits)
        assert not any(row.structural for row in [*e.inputs, *e.bounds, *e.habits])
        assert not refuted(e)
    elif certificate.verdict == NOT_REJECTED:
        assert not refuted(e)
        if e.bounds:
            small, large = re.search(rf"at most ({BOUND}) a step .*, (\S+) over D", head).groups()
            assert at_least(small, small_tv(e))
            held_to = bool(e.inputs) and of_d(e).tv is not None
            assert at_least(large, of_d(e).tv) if held_to else large == "unknown"
    else:
        assert certificate.verdict == (BROKEN if e.fault else NOT_LOSSLESS)
        assert e.fault is not None or refuted(e)


def test_no_sentence_is_contradicted_by_the_evidence_that_it_is_made_of(thorough):
    """The short form takes every fifth piece of evidence, and those of lossy rules and of code that does not run."""
    seen, verdicts = set(), set()
    made = list(evidences())
    last = 4 + len(ROWS) + 1
    for evidence in made if thorough else made[:-last:5] + made[-last:]:
        certificate = certificate_of(evidence)
        check_headline(certificate, evidence)
        for sentence in certificate.words:
            check(sentence, evidence)
            seen |= {form for form, _ in FORMS if re.fullmatch(form, sentence)}
        verdicts.add(certificate.verdict)
    assert verdicts == {LOSSLESS, NOT_LOSSLESS, NOT_REJECTED, BROKEN}
    assert seen == {form for form, _ in FORMS}  # every form is written by some evidence


# What certificates said before, of such evidence.
WRONG = [
    # A residual of 12 bits: thresholds out of place by 1e-3, strips between the random checks.
    ("Lossless: a step's joint, enumerated on 11 fixtures, is within 2e-16 of the target's.", BOUNDS["perhaps biased"]),
    # The same claim in today's form.
    ("Small pairs: the thresholds of the code were located on 1 of them, and imply a bias of at most 2e-16 a step. In 10,000,000 "
     "requests on it, none has other tokens than these thresholds imply. If requests fail one by one, what the search missed adds "
     "at most 3e-05 (99%, all pairs together).", BOUNDS["perhaps biased"]),
    # Wrong for few seeds: an error of 0.295 in its own table.
    ("No sign of a bias.", BOUNDS["impure"]),
    ("No test rejects the verifier. All tests together reject an exact one with a probability of at most 1e-06.", BOUNDS["biased"]),
    # What was compared with nothing.
    ("Small pairs: the thresholds of the code were located on 2 of them, and imply a bias of at most 2e-13 a step. In 10,000,000 "
     "requests on each, none has other tokens than these thresholds imply. If requests fail one by one, what the search missed adds "
     "at most 7.9e-07 (99%, all pairs together).", BOUNDS["counted"]),
    ("Exact on 2 small pairs: the bias there is proved to be at most 2e-13, if the code does the same at every call. Its own tensor "
     "operations were run over whole intervals of its uniforms.", BOUNDS["clean"]),
    ("Lossless as far as could be seen.", BOUNDS["clean"]),
]  # fmt: skip


@pytest.mark.parametrize(("sentence", "bounds"), WRONG)
def test_the_wrong_sentences_of_earlier_certificates_are_seen(sentence, bounds):
    with pytest.raises(AssertionError):
        check(sentence, Evidence(rows=ROWS["passed"], bounds=bounds, inputs=INPUTS["clean"]))
