"""Made-up evidence of all kinds, for certificates: whatever a suite may find of a verifier, in all combinations."""

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

from specbench.exactness.certificate import Certificate, certify
from specbench.exactness.evidence import Evidence
from specbench.exactness.results import COMPANY, GENERATOR, KINDS, SIZE, Bound, Habit, LongUseRow, Row, StratumRow
from specbench.exactness.settings import Settings
from specbench.exactness.statistics.calls import CallBound

SETTINGS = Settings()


def bound(fixture: str = "chain", **more) -> Bound:
    fields = {
        "fixture": fixture, "method": "located", "rule_error": 1e-16, "located": 2e-13, "boxes": 234, "proved": False,
        "draws": 10_000_000, "differing": 0, "rounding": 0, "structural": 0, "explained": 0, "impure": 0,
        "hidden": 7.83e-7, "tv": 7.8300021e-7, "least": 0.0,
    }  # fmt: skip
    return Bound(**{**fields, **more})


def of_rule(differing: int, rounding: int, tv: float) -> Bound:
    counts = {"differing": differing, "rounding": rounding, "structural": differing - rounding}
    return bound("long", method="rule", located=0.0, boxes=None, hidden=tv, tv=tv, **counts)


def stratum(name: str, **more) -> StratumRow:
    fields = {
        "stratum": name, "reason": "why", "probability": 0.5, "calls": 36_000, "requests": 90_000, "rows": 300_000,
        "differing_calls": 0, "differing": 0, "rounding": 0, "structural": 0, "code": 1.28e-4, "rule": 0.0,
        "tv": 1.28e-4,
    }  # fmt: skip
    return StratumRow(**{**fields, **more})


def inputs(**more) -> list[StratumRow]:
    """Two strata and what they are together."""
    return [
        stratum("tiny", **more), stratum("32k", calls=23_000, code=2.1e-4),
        stratum("large vocabularies", calls=23_000, code=2.1e-4), stratum("all of D", **more),
    ]  # fmt: skip


FREE = dict.fromkeys(("differing_calls", "differing", "rounding", "structural", "code", "rule", "tv"))
OWN = {"rule_checked": 36_000, "rule_wrong": 0, "rule_largest": 3.1e-14, "rule": 1.38e-4, "tv": 2.66e-4}
LONG_USE = LongUseRow(
    calls=100_000, seconds=20.0, requests=2000, new_requests=500, unsteady=0, changed=0, unlike_fresh=0,
    unlike_rule=0, rechecked=5000, changed_between=0, first_changed=None,
)  # fmt: skip


COUNTED = bound("long", method="counted", located=None, boxes=None, hidden=None, structural=None, tv=0.0046)
BOUNDS = {
    "clean": [bound("chain"), bound("deep", located=3e-9, tv=7.9e-7)],
    "proved": [bound("chain", proved=True), of_rule(0, 0, 8.11e-7)],
    "rounding": [bound("chain", differing=3, hidden=1.2e-6, tv=1.2000002e-6), of_rule(4, 4, 1.9e-6)],
    "impure": [bound("chain", differing=90, impure=90, hidden=1.3e-5, tv=1.3e-5), of_rule(88, 0, 1.2e-5)],
    "other rule": [bound("chain"), of_rule(5000, 10, 6.2e-4)],
    "other rule, everywhere": [of_rule(9_000_000, 10, 0.91)],
    "biased": [bound("chain", located=0.18, hidden=8e-4, tv=0.1808, least=0.1792, proved=True), bound("deep")],
    "perhaps biased": [bound("chain", located=2.31e-5, hidden=3e-5, tv=5.31e-5, least=0.0)],
    "proved, but for one": [bound("chain", proved=True, differing=1, hidden=9e-7, tv=9e-7), bound("a", proved=True)],
    "wrong rule": [bound("chain"), dataclasses.replace(of_rule(0, 0, 0.071), located=0.07, hidden=0.001)],
    "wide": [bound("chain", draws=300, hidden=0.026, tv=0.026)],
    "counted": [bound("chain"), COUNTED],
    "all counted": [COUNTED],
    "none": [],
}
INPUTS = {
    "clean": inputs(),
    "rounding": inputs(differing_calls=2, differing=3, rounding=3, code=2.4e-4, tv=2.4e-4),
    "structural": inputs(differing_calls=20, differing=30, rounding=3, structural=27, code=9e-4, tv=9e-4),
    "no rule": [
        dataclasses.replace(row, **FREE, along=0.012 if row.stratum == "all of D" else None) for row in inputs()
    ],
    "own rule": inputs(**OWN),
    "wrong rule": inputs(**{**OWN, "rule_wrong": 40, "rule_largest": 0.31, "rule": 0.0017, "tv": 0.001828}),
    "no closed form": inputs(rule_checked=500, rule_largest=1e-15, rule=None, tv=None),
    "few": inputs(calls=8, code=0.44, tv=0.44),
    "none": [],
}
HABIT_SETS = {
    "good": [Habit(name, 32_768, 0) for name in KINDS],
    "seed": [Habit("another seed", 32_768, 31), Habit("called again", 32_768, 0)],
    "memory": [Habit(name, 172, 40 + number) for number, name in enumerate(KINDS)],
    "generator": [Habit(name, 32_768, 1000 * (name in (GENERATOR, COMPANY, SIZE))) for name in KINDS],
}
ROWS = {
    "passed": [Row("chain", "joint", 10_000_000, 20.0, 26, 0.79, None, 0.0016, 0.0011)],
    "joint": [Row("chain", "joint", 10_000, 900.0, 26, 1e-170, 10_000), Row("deep", "form", 10_000, 0.0, 0, 1.0)],
    "form": [
        Row("chain", "form", 10_000, 12.0, 0, 0.0, 10_000),
        *(Row(name, "joint", 10_000, 900.0, 26, 1e-170, 10_000) for name in ("a", "b", "c", "d", "e")),
    ],
    "acceptance": [Row("near", "acceptance", 10_000, 90.0, 2, 1e-19, 10_000, gates=False)],
}


FAR = "after 512 of 1,600 calls of D; not run: calls in long use"


def evidences() -> Iterator[Evidence]:
    """Every combination, and those of code that does not run, which come last."""
    unsupported = ({}, {"one_hot": "draft.rows: None is not supported"})
    changed = dataclasses.replace(LONG_USE, changed=7, unlike_rule=9, first_changed=5000)
    for bounds, drawn, habits, rows, refused, cut in itertools.product(
        BOUNDS.values(), INPUTS.values(), HABIT_SETS.values(), ROWS.values(), unsupported, (False, True)
    ):
        calls = CallBound(24_000, 3, 7.01e-4) if cut else CallBound(24_000, 0, 1.88e-4)
        yield Evidence(
            rows=rows, bounds=bounds, inputs=drawn, habits=habits, unsupported=refused, batch=131_072,
            calls=calls if any(not row.by_counts for row in bounds) else None,
            refusals={"drafts above 16": 7, "one-hot drafts": 5} if refused and cut else {},
            long_use=None if not drawn else changed if cut else LONG_USE,
            cut=["calls of D", "calls in long use"] * cut,
            interrupted=FAR if refused and rows is ROWS["passed"] else None,
        )  # fmt: skip
    for located in (0.18, 0.3):
        biased = dataclasses.replace(BOUNDS["biased"][0], rule_error=0.18, located=located)
        for structural in (0, 4):
            bounds = [biased, dataclasses.replace(of_rule(0, 0, 0.071), structural=structural)]
            yield Evidence(rows=ROWS["joint"], bounds=bounds, lossy_rule=True)
    for rows in ROWS.values():
        yield Evidence(rows=rows, fault="On the fixture 'chain': verify raised KeyError: 3 (mine.py, line 7).")
    yield Evidence(fault='Mine has no attribute rule. Write rule = "token" into the class.')


def certificate_of(evidence: Evidence, **changes: Any) -> Certificate:
    """The certificate of a verifier that is declared lossless."""
    about = {
        "verifier": "mine", "rule": "token", "declared_lossless": True, "suite": "default", "settings": SETTINGS,
        "seed": 0, "command": "python -m specbench", "environment": {"commit": "abc"},
    }  # fmt: skip
    return certify(evidence=evidence, **about | changes)
