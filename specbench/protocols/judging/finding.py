"""The answer to one question about an engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

REFUTED, NOT_REFUTED, CANNOT_TELL, NOT_ASKED, MEASURED = (
    "refuted",
    "not refuted",
    "cannot tell",
    "not asked",
    "measured",
)


FINDINGS = "judge_findings.parquet"


@dataclass(frozen=True)
class FindingRow:
    """A finding in the table of a run's findings.

    Attributes:
        engine: its name and version.
        numbers: as JSON; see Finding for these and the others.
    """

    engine: str
    question: str
    verdict: str
    answer: str
    numbers: str


@dataclass(frozen=True, kw_only=True)
class Finding:
    """An answer.

    Attributes:
        question: in words.
        verdict: REFUTED, NOT_REFUTED, CANNOT_TELL, NOT_ASKED, or MEASURED where nothing can be refuted.
        answer: one sentence.
        power: what would have been found; empty if nothing is to be said.
        numbers: what the answer rests on, for the certificate's JSON.
        rows: of the question's tables, by name.
    """

    question: str
    verdict: str
    answer: str
    power: str = ""
    numbers: Mapping[str, Any] = field(default_factory=dict)
    rows: Mapping[str, list[Any]] = field(default_factory=dict)
