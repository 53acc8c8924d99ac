"""The verdict of a certificate, its headline and its page, by single pieces of evidence."""

import dataclasses
import itertools

from specbench.exactness.certificate import LOSSLESS, NOT_LOSSLESS, NOT_REJECTED
from specbench.exactness.certificate.words import say
from specbench.exactness.evidence import Evidence
from specbench.exactness.statistics.calls import CallBound
from tests.helpers.made_up_evidence import (
    BOUNDS,
    HABIT_SETS,
    INPUTS,
    LONG_USE,
    ROWS,
    certificate_of,
    evidences,
)


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
