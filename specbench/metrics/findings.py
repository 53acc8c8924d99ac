"""The table of what protocol=judge found: a line a question. Its questions, by which reports find their lines."""

from __future__ import annotations

from dataclasses import dataclass

FINDINGS = "judge_findings.parquet"
OF_TEXTS = "At this temperature, are speculative texts distributed as plain ones?"
OF_CHECKPOINT = "At this temperature, are texts distributed as the checkpoint says?"
OF_GREEDY = "At temperature 0, are speculative texts the same as plain ones?"
REFUTED = "refuted"
SHARES = "judge_checkpoint.parquet"  # how often tokens of a set occur, in texts of each mode
DIFFERENCE = "speculative - plain"  # in the place of a mode, the difference of both


@dataclass(frozen=True)
class FindingRow:
    """A finding.

    Attributes:
        engine: its name and version.
        question, verdict, answer: see specbench/protocols/judging/finding.py.
        numbers: what the answer rests on, as JSON.
    """

    engine: str
    question: str
    verdict: str
    answer: str
    numbers: str
