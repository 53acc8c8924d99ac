"""The answer to one question about an engine."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from specbench.metrics import findings

REFUTED, NOT_REFUTED, CANNOT_TELL, NOT_ASKED, MEASURED = (
    findings.REFUTED,
    "not refuted",
    "cannot tell",
    "not asked",
    "measured",
)
RECORDED = "The texts of the source were served before, for other requests."


@dataclass(frozen=True, kw_only=True)
class Finding:
    """An answer.

    Attributes:
        question: in words.
        verdict: REFUTED, NOT_REFUTED, CANNOT_TELL, NOT_ASKED, or MEASURED where nothing can be refuted.
        answer: one sentence.
        remark: a sentence for the headline of any verdict, on faults that refute nothing; empty if there are none.
        power: what would have been found; empty if nothing is to be said.
        numbers: what the answer rests on, for the certificate's JSON.
        rows: of the question's tables, by name.
    """

    question: str
    verdict: str
    answer: str
    remark: str = ""
    power: str = ""
    numbers: Mapping[str, Any] = field(default_factory=dict)
    rows: Mapping[str, list[Any]] = field(default_factory=dict)


def not_asked(question: str, reason: str) -> Finding:
    """The finding of a question that was not asked, and why."""
    return Finding(question=question, verdict=NOT_ASKED, answer=reason)
