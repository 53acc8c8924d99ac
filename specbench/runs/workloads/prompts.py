"""A row of a workload's file as a prompt, with errors that name the line."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from specbench.core.checks import is_whole
from specbench.core.machine.files import LONGEST_NAME, is_name, is_text, shown
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
        text: the text; in a conversation, what the user says first.
        place: its line in the file or row in the table, as messages name it, such as "line 3".
        gamma, max_new_tokens, seed: of this text alone; None takes the run's.
        category: the set's own word for the kind of text; empty if it has none.
        before: messages that precede the text, such as a system prompt or turns that were answered elsewhere.
        further: what the user says next, each after the target's reply.
        sampling: sampling parameters of this text alone, by the engines' names.
        turn: which turn of its conversation the text is, from 1.
        columns: what it was read from, such as "id from question_id".
    """

    name: str
    text: str
    place: str
    gamma: int | None = None
    max_new_tokens: int | None = None
    seed: int | None = None
    category: str = ""
    before: tuple[Message, ...] = ()
    further: tuple[str, ...] = ()
    sampling: Mapping[str, Any] = field(default_factory=dict)
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
    def messages(self) -> list[Message]:
        """The conversation up to the first reply."""
        return [*self.before, {"role": "user", "content": self.text}]


def prompt_of(row: WorkloadRow, columns: Columns, parameters: bool) -> Prompt:
    """The prompt of a row.

    Args:
        parameters: whether the row's own sampling parameters, gamma, seed and length count.

    Raises:
        ConfigError: a row without a usable text, name or number; the line is named.
    """
    content = columns.content(row.value)
    if content is None:
        names = [name for name in (columns.prompt, columns.turns, columns.messages) if name is not None]
        raise row.unusable(f'no "{names[0] if names else "prompt"}"')
    role, column = content
    before, turns = _conversation(role, column, row)
    sampling = own_parameters(row) if parameters else {}
    counts: dict[str, Any] = {key: _count(key, sampling.pop(key), row) for key in _COUNTS if key in sampling}
    return Prompt(
        _name(columns.id, row),
        turns[0],
        row.place,
        category=_category(columns.category, row),
        before=before,
        further=turns[1:],
        sampling=sampling,
        columns=columns.read(row.value),
        **counts,
    )


def _conversation(role: str, column: str, row: WorkloadRow) -> tuple[tuple[Message, ...], tuple[str, ...]]:
    """The messages that precede the first turn, and the turns."""
    value = row.value[column]
    if role == "messages" or (isinstance(value, list) and value and isinstance(value[0], dict)):
        if not isinstance(value, list) or not value:
            raise row.unusable(f"{column} is {shown(value)}, not a list of messages")
        return _split([_message(message, f"{column}[{i}]", row) for i, message in enumerate(value)], column, row)
    if role == "prompt":
        return (), (_text(value, column, row),)
    if not isinstance(value, list) or not value:
        raise row.unusable(f"{column} is {shown(value)}, not a list of texts")
    return (), tuple(_text(turn, f"{column}[{i}]", row) for i, turn in enumerate(value))


def _text(value: Any, name: str, row: WorkloadRow) -> str:
    if not isinstance(value, str):
        raise row.unusable(f"{name} is {shown(value)}, not a string")
    if not value.strip():
        raise row.unusable(f"{name} is empty")
    if not is_text(value):
        raise row.unusable(f"{name} has half of a surrogate pair, which is no character")
    if any(word in value for word in PLACEHOLDERS):
        raise row.wrong(f"{name} is a placeholder ({shown(value)}), not the text itself", _FILL)
    return value


def _message(value: Any, name: str, row: WorkloadRow) -> dict[str, str]:
    if not isinstance(value, dict) or value.get("role") not in ROLES:
        raise row.unusable(f"{name} is {shown(value)}, not a message with a role out of {', '.join(ROLES)}")
    content = value.get("content")
    if isinstance(content, list):  # OpenAI's parts
        if not all(isinstance(part, dict) and part.get("type") == "text" for part in content):
            raise row.unusable(f"{name} has parts that are not of type text")
        content = "".join(_text(part.get("text"), f"{name}.content", row) for part in content)
    return {"role": value["role"], "content": _text(content, f"{name}.content", row)}


def _split(
    messages: Sequence[dict[str, str]], column: str, row: WorkloadRow
) -> tuple[tuple[Message, ...], tuple[str, ...]]:
    """Messages up to the first question without a reply, and the questions from there: the target answers them."""
    roles = [message["role"] for message in messages]
    replied = [role == "user" and roles[i + 1 : i + 2] == ["assistant"] for i, role in enumerate(roles)]
    first = next((i for i, role in enumerate(roles) if role == "user" and not replied[i]), None)
    if first is None:
        raise row.unusable(f"{column} has no question without a reply: leave the last reply out")
    if set(roles[first:]) != {"user"}:
        raise row.unusable(f"{column}[{first}] has no reply, but other messages than questions follow it")
    return tuple(messages[:first]), tuple(message["content"] for message in messages[first:])


def _count(key: str, value: Any, row: WorkloadRow) -> int | None:
    low, high = _COUNTS[key]
    if value is None or (is_whole(value) and low <= value <= high):
        return value
    name = next((name for name in LENGTHS if name in row.value), key) if key == "max_new_tokens" else key
    problem = f"{name} {shown(value)} is no whole number from {low} to {high}"
    raise row.wrong(problem, "Mend it, or leave it out to take the run's.")


def _name(column: str | None, row: WorkloadRow) -> str:
    if column is None or column not in row.value:
        return f"{row.unit}-{row.number}"
    value = row.value[column]
    if isinstance(value, bool) or not isinstance(value, str | int):
        problem = "is neither a text nor a whole number"
    elif is_name(str(value)):
        return str(value)
    else:
        problem = "is empty, too long, or has characters that cannot be seen"
    raise row.wrong(
        f"{column} {shown(value)} {problem}",
        f"Use a text of 1 to {LONGEST_NAME} printable characters, or a whole number; workload.columns.id=null numbers "
        "the rows.",
    )


def _category(column: str | None, row: WorkloadRow) -> str:
    value = None if column is None else row.value.get(column)
    if value is None:
        return ""
    if not is_category(value):
        problem = f"{column} {shown(value)} is no name of a category"
        raise row.wrong(problem, "Use a short text; workload.columns.category=null uses none.")
    return str(value)
