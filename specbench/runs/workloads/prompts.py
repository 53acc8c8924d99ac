"""A row of a workload's file as a prompt, with errors that name the line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from specbench.core.errors import ConfigError
from specbench.core.machine.files import LONGEST_NAME, Origin, is_name, is_text, shown
from specbench.core.sampling_params import LARGEST_LENGTH, LARGEST_SEED
from specbench.runs.config import LARGEST_GAMMA, is_category
from specbench.runs.workloads.columns import Columns
from specbench.runs.workloads.requests import LENGTHS, own_parameters
from specbench.runs.workloads.sources import WorkloadRow

Message = Mapping[str, str]  # role and content, as chat templates take them
ROLES = ("system", "developer", "user", "assistant")
PLACEHOLDERS = ("FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE",)  # SPEED-Bench's
_FILL = (
    "Fill the rows with the script that comes with the set (SPEED-Bench's prepare.py), or leave them out with "
    "workload.where."
)
_COUNTS = {"gamma": (0, LARGEST_GAMMA), "max_new_tokens": (1, LARGEST_LENGTH), "seed": (0, LARGEST_SEED)}


@dataclass(frozen=True)
class Prompt:
    """A text to continue, or the first question of a conversation, and its line in the file.

    Attributes:
        name: in logs and tables.
        text: the text; in a conversation, what the user says first.
        line: its number in the file.
        gamma, max_new_tokens, seed: of this text alone; None takes the run's.
        category: the set's own word for the kind of text; empty if it has none.
        before: messages that precede the text, such as a system prompt or turns that were answered elsewhere.
        further: what the user says next, each after the target's reply.
        sampling: sampling parameters of this text alone, by the engines' names.
        unit: what ``line`` counts: lines of a file, or rows of a table.
        turn: which turn of its conversation the text is, from 1.
        columns: what it was read from, such as "id from question_id".
    """

    name: str
    text: str
    line: int
    gamma: int | None = None
    max_new_tokens: int | None = None
    seed: int | None = None
    category: str = ""
    before: tuple[Message, ...] = ()
    further: tuple[str, ...] = ()
    sampling: Mapping[str, Any] = field(default_factory=dict)
    unit: str = "line"
    turn: int = 1
    columns: tuple[str, ...] = ()

    @property
    def turn_name(self) -> str:
        """The name of this turn: the prompt's own for the first."""
        return self.name if self.turn == 1 else f"{self.name}#turn-{self.turn}"

    @property
    def turn_names(self) -> list[str]:
        """The names of this turn and of those to come."""
        later = range(self.turn + 1, self.turn + 1 + len(self.further))
        return [self.turn_name, *(f"{self.name}#turn-{turn}" for turn in later)]

    @property
    def place(self) -> str:
        """Its line, as messages name it."""
        return f"{self.unit} {self.line}"

    @property
    def messages(self) -> list[Message]:
        """The conversation up to the first reply."""
        return [*self.before, {"role": "user", "content": self.text}]


def prompt_of(row: WorkloadRow, columns: Columns, source: Origin, parameters: bool = True) -> Prompt:
    """The prompt of a row.

    Args:
        parameters: whether the row's own sampling parameters, gamma, seed and length count.

    Raises:
        ConfigError: a row without a usable text, name or number; the line is named.
    """
    content = columns.content(row.value)
    if content is None:
        names = " or ".join(f'"{name}"' for name in _asked(columns))
        raise _unusable(row, source, f"no {names}")
    role, column = content
    before, turns = _conversation(role, row.value[column], column, row, source)
    own = own_parameters(row.value, row.place, source) if parameters else {}
    counts: dict[str, Any] = {key: _count(key, own.pop(key), row, source) for key in _COUNTS if key in own}
    return Prompt(
        _name(columns.id, row, source),
        turns[0],
        row.number,
        category=_category(columns.category, row, source),
        before=before,
        further=turns[1:],
        sampling=own,
        unit=row.unit,
        columns=columns.read(row.value),
        **counts,
    )


def _asked(columns: Columns) -> list[str]:
    """The column that a row lacks: the prompt's, unless another was asked for."""
    named = [name for name in (columns.prompt, columns.turns, columns.messages) if name is not None]
    return named[:1] or ["prompt"]


def _unusable(row: WorkloadRow, source: Origin, why: str) -> ConfigError:
    return source.wrong(f"{row.place} has no usable prompt ({why})")


def _conversation(
    role: str, value: Any, column: str, row: WorkloadRow, source: Origin
) -> tuple[tuple[Message, ...], tuple[str, ...]]:
    """The messages that precede the first turn, and the turns."""
    if role == "messages" or (isinstance(value, list) and value and isinstance(value[0], dict)):
        return _split(_messages(value, column, row, source), column, row, source)
    if role == "prompt":
        return (), (_text(value, column, row, source),)
    if not isinstance(value, list) or not value:
        raise _unusable(row, source, f"{column} is {shown(value)}, not a list of texts")
    return (), tuple(_text(turn, f"{column}[{i}]", row, source) for i, turn in enumerate(value))


def _text(value: Any, name: str, row: WorkloadRow, source: Origin) -> str:
    if not isinstance(value, str):
        raise _unusable(row, source, f"{name} is {shown(value)}, not a string")
    if not value.strip():
        raise _unusable(row, source, f"{name} is empty")
    if not is_text(value):
        raise _unusable(row, source, f"{name} has half of a surrogate pair, which is no character")
    if any(word in value for word in PLACEHOLDERS):
        raise source.wrong(f"{row.place}: {name} is a placeholder ({shown(value)}), not the text itself", _FILL)
    return value


def _messages(value: Any, column: str, row: WorkloadRow, source: Origin) -> list[dict[str, str]]:
    if not isinstance(value, list) or not value:
        raise _unusable(row, source, f"{column} is {shown(value)}, not a list of messages")
    return [_message(message, f"{column}[{i}]", row, source) for i, message in enumerate(value)]


def _message(value: Any, name: str, row: WorkloadRow, source: Origin) -> dict[str, str]:
    if not isinstance(value, dict) or value.get("role") not in ROLES:
        raise _unusable(row, source, f"{name} is {shown(value)}, not a message with a role out of {', '.join(ROLES)}")
    content = value.get("content")
    if isinstance(content, list):  # OpenAI's parts
        if not all(isinstance(part, dict) and part.get("type") == "text" for part in content):
            raise _unusable(row, source, f"{name} has parts that are not of type text")
        content = "".join(_text(part.get("text"), f"{name}.content", row, source) for part in content)
    return {"role": value["role"], "content": _text(content, f"{name}.content", row, source)}


def _split(
    messages: Sequence[dict[str, str]], column: str, row: WorkloadRow, source: Origin
) -> tuple[tuple[Message, ...], tuple[str, ...]]:
    """Messages up to the first question without a reply, and the questions from there: the target answers them."""
    roles = [message["role"] for message in messages]
    replied = [role == "user" and roles[i + 1 : i + 2] == ["assistant"] for i, role in enumerate(roles)]
    first = next((i for i, role in enumerate(roles) if role == "user" and not replied[i]), None)
    if first is None:
        raise _unusable(row, source, f"{column} has no question without a reply: leave the last reply out")
    if set(roles[first:]) != {"user"}:
        raise _unusable(row, source, f"{column}[{first}] has no reply, but other messages than questions follow it")
    return tuple(messages[:first]), tuple(message["content"] for message in messages[first:])


def _count(key: str, given: Any, row: WorkloadRow, source: Origin) -> int | None:
    low, high = _COUNTS[key]
    if given is None or (isinstance(given, int) and not isinstance(given, bool) and low <= given <= high):
        return given
    named = next((name for name in LENGTHS if name in row.value), key) if key == "max_new_tokens" else key
    problem = f"{row.place}: {named} {shown(given)} is no whole number from {low} to {high}"
    raise source.wrong(problem, "Mend it, or leave it out to take the run's.")


def _name(column: str | None, row: WorkloadRow, source: Origin) -> str:
    if column is None or column not in row.value:
        return f"{row.unit}-{row.number}"
    given = row.value[column]
    if isinstance(given, bool) or not isinstance(given, str | int):
        why = "is neither a text nor a whole number"
    elif is_name(name := str(given)):
        return name
    else:
        why = "is empty, too long, or has characters that cannot be seen"
    raise source.wrong(
        f"{row.place}: {column} {shown(given)} {why}",
        f"Use a text of 1 to {LONGEST_NAME} printable characters, or a whole number; workload.columns.id=null numbers "
        "the rows.",
    )


def _category(column: str | None, row: WorkloadRow, source: Origin) -> str:
    given = None if column is None else row.value.get(column)
    if given is None:
        return ""
    if not is_category(given):
        problem = f"{row.place}: {column} {shown(given)} is no name of a category"
        raise source.wrong(problem, "Use a short text; workload.columns.category=null uses none.")
    return str(given)
