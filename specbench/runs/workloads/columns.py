"""Which column of a workload's rows is the prompt, and which its name and category.

Guessed from the schemas of the field's sets, unless ``workload.columns`` names them:

    Spec-Bench, MT-Bench, SPEED-Bench    question_id, category, turns
    SPEED-Bench as its script fills it   question_id, category, messages
    HumanEval                            task_id, prompt
    GSM8K                                question
    MATH-500                             unique_id, subject, problem
    RedHatAI/speculator_benchmarks       prompt
    requests to an engine                prompt or messages, custom_id
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specbench.runs.config import AUTO, ColumnsConfig

CONTENT = ("turns", "prompt", "messages")  # a row is read by the first of these that it has
KNOWN: dict[str, tuple[str, ...]] = {
    "turns": ("turns",),
    "prompt": ("prompt", "question", "problem", "text"),
    "messages": ("messages",),
    "id": ("prompt_id", "question_id", "task_id", "unique_id", "custom_id"),
    "category": ("category", "subject"),
}


class Columns(ColumnsConfig):
    """The name of each column, without any AUTO; None if there is none."""

    @staticmethod
    def of(config: ColumnsConfig, first: Mapping[str, Any]) -> Columns:
        """Those that were asked for, and the others by what the first row has.

        If one of turns, prompt and messages was asked for, the others are not guessed.
        """
        is_named = any(getattr(config, role) not in (AUTO, None) for role in CONTENT)

        def chosen(role: str) -> str | None:
            name = getattr(config, role)
            if name != AUTO:
                return name
            if is_named and role in CONTENT:
                return None
            names = [column for column in KNOWN[role] if first.get(column) is not None]
            return names[0] if names else KNOWN[role][0]

        return Columns(**{role: chosen(role) for role in KNOWN})

    def of_line(self, config: ColumnsConfig, row: Mapping[str, Any]) -> Columns:
        """These, but that a guess goes by the row itself where it lacks the column: logs mix requests of several kinds.

        Args:
            self: of the first row. What it has and this row has as null is not looked for elsewhere.
        """
        of_row = Columns.of(config, row)
        has_content = any(getattr(self, role) in row for role in CONTENT)
        kept = {role: getattr(self if has_content else of_row, role) for role in CONTENT}
        named = {role: getattr(self, role) for role in ("id", "category")}
        kept |= {role: name if name is None or name in row else getattr(of_row, role) for role, name in named.items()}
        return Columns(**kept)

    def content(self, row: Mapping[str, Any]) -> tuple[str, str] | None:
        """The role and the name of the column that a row's text is in; None if it has none of them."""
        named = ((role, getattr(self, role)) for role in CONTENT)
        return next(((role, name) for role, name in named if name is not None and row.get(name) is not None), None)

    def read(self, row: Mapping[str, Any]) -> tuple[str, ...]:
        """What a row is read from, such as "id from question_id"."""
        role, name = self.content(row) or ("prompt", None)
        named = {role: name, "id": self.id, "category": self.category}
        return tuple(f"{role} from {name}" for role, name in named.items() if name in row)
