"""Sentences of a certificate print the fields that they are about, rounded to their safe side; and its verdict."""

import dataclasses
import itertools
import re
from pathlib import Path

import pytest

from specbench.core.rounding import most
from specbench.exactness.certificate import BROKEN, LOSSLESS, NOT_LOSSLESS, NOT_REJECTED, words
from specbench.exactness.certificate.words import say
from specbench.exactness.evidence import Evidence
from specbench.exactness.results import COMPANY, GENERATOR, LAW, SEED, TWICE, Failure, Habit, LongUseRow, Row
from specbench.exactness.statistics.calls import CallBound
from specbench.exactness.verdict import verdict_of
from tests.helpers.made_up_evidence import (
    BOUNDS,
    FREE,
    HABIT_SETS,
    INPUTS,
    LONG_USE,
    ROWS,
    SETTINGS,
    bound,
    certificate_of,
    evidences,
    stratum,
)

# No two numbers of a piece of evidence are the same.
LOCATED = [
    bound("chain", located=2.13e-13, draws=1001, differing=3, impure=2, hidden=1.21e-6, tv=1.2100003e-6, structural=4),
    bound("deep", located=3.17e-9, draws=2002, differing=5, hidden=1.31e-6, tv=1.31317e-6),
]
BIASED = [bound("chain", located=0.1834, rule_error=0.1523, draws=1001, differing=90, hidden=8e-4, least=0.1787)]
PERHAPS = [bound("chain", located=2.36e-5, hidden=3.1e-5, tv=5.46e-5)]
OF_RULE = [
    bound(name, method="rule", located=located, boxes=None, draws=draws, differing=7, rounding=6, structural=1, hidden=hidden, tv=tv)
    for name, located, draws, hidden, tv in (("long", 0.0716, 3003, 0.0017, 0.0733), ("idle", 0.0, 4004, 0.0018, 0.0018))
]  # fmt: skip
COUNTED = [bound("long", method="counted", located=None, draws=5005, hidden=None, structural=None, tv=0.00461)]
PROVED = [bound("chain", proved=True, located=2.13e-13), bound("deep", proved=True, located=3.17e-9)]
LARGE = stratum("large vocabularies", calls=77, code=2.17e-4)
OTHERS = {"differing_calls": 12, "differing": 34, "rounding": 5, "structural": 29, "code": 2.46e-4, "tv": 2.46e-4}
OWN = {"rule_checked": 35_001, "rule_wrong": 41, "rule_largest": 0.316, "rule": 0.00172, "tv": 0.001966}
USE = LongUseRow(
    calls=100_001, seconds=20.0, requests=2000, new_requests=501, unsteady=2, changed=7, unlike_fresh=None,
    unlike_rule=9, rechecked=5000, changed_between=3, first_changed=5003,
)  # fmt: skip
JOINT = Row("chain", "joint", 10_001, 912.0, 26, 3.4e-170, 10_002)
FORM = Row("deep", "form", 10_003, 12.0, 0, 0.0, 10_004)
HABITS = [Habit(SEED, 32_768, 31, 11), Habit(TWICE, 172, 0, 0)]


def whole(**more) -> list:
    return [stratum("tiny", **more), LARGE, stratum("all of D", calls=36_001, **more)]


def of(macro: str, *more, **pieces) -> list[str]:
    return say(macro, Evidence(**pieces), *more)


def of_verdict(macro: str, *more, **pieces) -> list[str]:
    evidence = Evidence(**pieces)
    return say(macro, verdict_of(evidence), evidence, *more)


CALLS = CallBound(24_001, 3, 7.01e-4)
SENTENCES = {
    "biased": (of_verdict("rejections", SETTINGS, bounds=BIASED), "0.18 90 1,001 0.17 1e-05"),
    "rejected": (of_verdict("rejections", SETTINGS, rows=[JOINT]), "10,002 3.4e-170 1e-06"),
    "failed": (of_verdict("rejections", SETTINGS, bounds=BIASED, rows=[JOINT, FORM]), "0.18 90 1,001 0.17 1e-05 12 10,003 1"),
    "wrong rule": (of_verdict("headline", rows=[Row("D", LAW, 40, 9.0, 0, 0.0, 40)]), "9 40"),
    "others": (of_verdict("rejections", SETTINGS, rows=[FORM, *(dataclasses.replace(JOINT, fixture=name) for name in "abcdef")]), "12 10,003 1 2"),
    "lossy": (of("of_lossy_rule", bounds=BIASED, lossy_rule=True), "0.18 0.15"),
    "follows": (of("of_lossy_rule", bounds=LOCATED[1:], lossy_rule=True), ""),
    "located": (of("small_pairs", bounds=LOCATED), "2 3.2e-09 1,001 2,002 8 1.4e-06 99"),
    "located, none differs": (of("small_pairs", bounds=PROVED[:1]), "1 2.2e-13 10,000,000 none 7.9e-07 99"),
    "by the rule": (of("small_pairs", bounds=OF_RULE), "2 3,003 4,004 14 12 0.074 99"),
    "counted": (of("small_pairs", bounds=COUNTED), "1 5,005 0.0047 99"),
    "calls": (of("small_pairs", bounds=[], calls=CALLS, batch=131), "24,001 131 3 0.00071 99"),
    "calls, none differs": (of("small_pairs", bounds=[], calls=dataclasses.replace(CALLS, differing=0), batch=131), "24,001 131 No 0.00071 99"),
    "D": (of("calls_of_d", inputs=whole(), inputs_seed=17), "36,001 17 All 0.00013 99 0.00022 32,000"),
    "D, others": (of("calls_of_d", inputs=whole(**OTHERS), inputs_seed=17), "36,001 17 34 12 5 0.00025 99 0.00022 32,000"),
    "D, no rule": (of("calls_of_d", inputs=whole(**FREE, along=0.0123), inputs_seed=17), "36,001 17 8 5 0.013 99"),
    "D, own rule": (of("calls_of_d", inputs=whole(**OWN), inputs_seed=17), "36,001 17 All 0.00013 99 0.00022 32,000 35,001 0.32 41 0.00013 0.0018 0.002 99"),
    "D, no closed form": (of("calls_of_d", inputs=whole(rule_checked=501, rule=None, tv=None), inputs_seed=17), "36,001 17 All 0.00013 99 0.00022 32,000 501"),
    "where in D": (of("where_in_d", inputs=[stratum(name, requests=1000 + n, structural=90 - n) for n, name in enumerate("abcde")]), "90 1,000 89 1,001 88 1,002 2"),
    "use": (say("long_use", USE), "2,501 100,001 some 5,003 7 9 2 3"),
    "use, good": (say("long_use", dataclasses.replace(USE, unsteady=0, changed=0, unlike_rule=0, changed_between=0)), "2,501 100,001 All"),
    "proved": (of("proofs", bounds=PROVED), "2 3.2e-09"),
    "exact": (of("proofs", bounds=PROVED[:1]), "1 2.2e-13"),
    "habits": (of("of_habits", habits=HABITS, bounds=LOCATED), "31 32,768 3 1,001 2"),
    "habits, unclear": (of("of_habits", habits=[Habit(GENERATOR, 201, 51), Habit(COMPANY, 202, 52)]), "51 201 none"),
    "another rule": (of("of_another_rule", habits=HABITS, bounds=OF_RULE, inputs=[stratum("tiny", requests=88, structural=8)]), "21 40,035"),
    "refused": (of_verdict("caveats", bounds=LOCATED[1:], inputs=whole(), refusals={"above 16": 7, "one-hot": 6}, unsupported={"mixed": "no"}), "13 16"),
    "wide": (of_verdict("caveats", bounds=[bound(hidden=0.0261, tv=0.0261)], inputs=whole(code=0.44, tv=0.44), calls=CallBound(8, 0, 0.0333)), "0.001 0.02 0.02"),
    "perhaps": (of_verdict("caveats", bounds=PERHAPS, inputs=whole()), "2.4e-05 1e-05"),
    "rule is biased": (of_verdict("caveats", bounds=OF_RULE[:1], inputs=whole()), "1 93,003 0.072 0.001"),
    "broken": (of_verdict("sentences", SETTINGS, rows=[JOINT, FORM], fault="It raised."), "10,003"),
    "passed": (of_verdict("sentences", SETTINGS, bounds=LOCATED[1:], inputs=whole())[:1], "No All 1e-06"),
    "covered": (of("covered", inputs=whole()), "36,001 90,000 300,000"),
    "not covered": (of("not_covered", refusals={"one-hot": 6})[:1], "6"),
}  # fmt: skip


@pytest.mark.parametrize("name", SENTENCES)
def test_sentences_print_the_numbers_of_their_fields(name):
    """In their order: of two fields that change places both are wrong. Upper bounds are rounded up."""
    sentences, numbers = SENTENCES[name]
    printed = re.findall(r"\b(?:none|No|All|some)\b|\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?", " ".join(sentences))
    assert printed == numbers.split()


WRONG_FORMULAS = [stratum("tiny", structural=8, rule_wrong=3)]
ACCEPTANCE = Row("near", "acceptance", 10_000, 90.0, 2, 1e-19, 10_000, gates=False)
SAID = {
    "because no call was drawn from D": ({}, {"inputs": whole()}),
    "because the suite was interrupted": ({"interrupted": "after 5"}, {}),
    "Interrupted after 5. Bounds": ({"interrupted": "after 5"}, {}),
    "A time limit ended early: calls of D, long use. Bounds": ({"cut": ["calls of D", "long use"]}, {}),
    "It accepts other numbers of tokens than the rule that it names (on near)": ({"rows": [ACCEPTANCE]}, {"rows": [JOINT]}),
    "no closed form along": ({"inputs": whole(rule_checked=5, tv=None)}, {"inputs": whole(**FREE)}),
    "its rule has no formulas here": ({"inputs": whole(**FREE)}, {"inputs": whole(rule_checked=5, tv=None)}),
    "Rules known by name: token, block": ({"inputs": whole(**FREE)}, {"inputs": whole(rule_checked=5, tv=None)}),
    "mend these first": ({"inputs": WRONG_FORMULAS}, {"inputs": [stratum("tiny", structural=8)]}),
    "It follows another rule, uses": ({"inputs": [stratum("tiny", structural=8)]}, {"inputs": WRONG_FORMULAS}),
    "State or noise of its own explains": ({"habits": [Habit(TWICE, 172, 40, 40)]}, {"habits": HABITS}),
    "The simplest failing example names": ({"bounds": OF_RULE, "failure": Failure("a", "b", (), "c")}, {"bounds": OF_RULE}),
}  # fmt: skip


@pytest.mark.parametrize("phrase", SAID)
def test_what_keeps_code_from_being_called_lossless_is_said_where_it_does(phrase):
    there, elsewhere = (" ".join(of_verdict("caveats", **pieces)) for pieces in SAID[phrase])
    assert phrase in there
    assert phrase not in elsewhere


def test_certificates_of_all_combinations_say_what_follows(thorough):
    """The short form takes every fifth piece of evidence, and those of lossy rules and of code that does not run."""
    made, verdicts, texts = list(evidences()), set(), []
    for evidence in made if thorough else made[:-9:5] + made[-9:]:
        certificate = certificate_of(evidence)
        verdicts.add(certificate.verdict)
        texts += certificate.words
        head, _, far = certificate.headline.partition("; interrupted ")
        assert far == (evidence.interrupted or "")
        refuted = any(row.gates and row.rejected_at is not None for row in evidence.rows)
        refuted |= any(row.least > 1e-5 for row in evidence.bounds)
        if evidence.fault is not None:
            assert certificate.verdict == BROKEN
        elif refuted:
            assert certificate.verdict == NOT_LOSSLESS
        else:
            assert certificate.verdict in (LOSSLESS, NOT_REJECTED)
            small, large = most(certificate.tv_upper_bound), most(certificate.inputs_upper_bound)
            if certificate.verdict == LOSSLESS:
                assert re.fullmatch(f"lossless up to {small} a step on the .* tried, {large} over D", head)
            elif evidence.bounds:
                assert f"TV at most {small} a step on the " in head
    assert verdicts == {LOSSLESS, NOT_LOSSLESS, NOT_REJECTED, BROKEN}
    texts += [text for sentences, _ in SENTENCES.values() for text in sentences]
    texts += [text for pieces, _ in SAID.values() for text in of_verdict("caveats", **pieces)]
    source = Path(words.__file__).with_suffix(".md").read_text(encoding="utf-8")
    written = source[: source.index("{% macro covered")]
    for start in re.findall(r"(?m)^- ([^{\n]+)", written):  # every sentence is written by some evidence
        assert any(start.strip() in text for text in texts), start


# --- The verdict ---


def test_verdicts_of_single_pieces_of_evidence():
    good = Evidence(rows=ROWS["passed"], bounds=BOUNDS["clean"], inputs=INPUTS["clean"], habits=HABIT_SETS["good"])
    assert certificate_of(good).verdict == LOSSLESS
    for change in (
        {"inputs": []},
        {"refusals": {"drafts above 16": 7}},
        {"long_use": dataclasses.replace(LONG_USE, changed=7)},
        *({"inputs": INPUTS[name]} for name in ("few", "structural", "no rule", "no closed form")),
        {"bounds": BOUNDS["impure"]},
        {"bounds": BOUNDS["counted"]},
        {"bounds": BOUNDS["wide"]},
        {"bounds": BOUNDS["perhaps biased"]},
        {"habits": HABIT_SETS["seed"]},
        {"unsupported": {"one_hot": "no"}},
        {"habits": [dataclasses.replace(HABIT_SETS["seed"][0], structural=31)]},
        {"calls": CallBound(200, 0, 0.024)},
    ):
        assert certificate_of(dataclasses.replace(good, **change)).verdict == NOT_REJECTED, change
    assert certificate_of(dataclasses.replace(good, bounds=BOUNDS["biased"])).verdict == NOT_LOSSLESS
    assert certificate_of(dataclasses.replace(good, rows=ROWS["joint"])).verdict == NOT_LOSSLESS
    assert certificate_of(dataclasses.replace(good, rows=ROWS["acceptance"])).verdict == LOSSLESS


def test_the_strongest_evidence_leads():
    """What was located before any test; of tests what cannot be chance, then the smallest p-value."""
    both = Evidence(rows=ROWS["form"], bounds=BOUNDS["biased"])
    assert certificate_of(both).headline == "not lossless: TV 0.18 a step on chain"
    assert certificate_of(Evidence(rows=ROWS["form"], bounds=[])).headline == (
        "not lossless: 12 of 10,000 requests on chain get a result that no lossless verifier gives"
    )


def test_the_first_calls_of_what_cannot_be_copied_are_not_covered():
    for unlike_fresh, covered in ((None, False), (0, True)):
        use = dataclasses.replace(LONG_USE, unlike_fresh=unlike_fresh)
        lines = say("not_covered", Evidence(long_use=use))
        assert any(line.startswith("the first calls of an object") for line in lines) != covered


def test_what_was_not_run_is_not_blamed_on_the_verifier():
    lines = say("not_covered", Evidence(inputs=INPUTS["clean"]))
    assert "what many calls of one object change, the first ones too: not run" in lines
    assert not any("no unused copy" in line for line in lines)


def test_every_page_can_be_written():
    for evidence in itertools.islice(evidences(), 0, None, 97):
        page = certificate_of(evidence).page
        assert "## What was covered" in page
        assert "| None" not in page
