"""Traces: what target and draft think of each token of texts that were sampled from the target. One parquet file.

One line a token, in the order of the text, with these columns (float32; those marked * may be null in an import):

    prompt, sample          which text: the prompt's name, and a number where a prompt was continued several times
    position                0, 1, 2, ... within the continuation
    token                   its id
    log_p, log_q            log-probability under target and draft, by the sampler the text was sampled with
    overlap*                sum over the vocabulary of min(p, q)
    target_entropy*    nats, of p
    draft_entropy*, draft_confidence*    what policies of draft lengths read: nats of q, and the token's probability;
                            if q has temperature 0, nats and the likeliest token's probability at temperature 1
    argmax_agree*           whether p and q have the same most likely token (1 or 0)
    draft_argmax*           whether the token is q's most likely one (1 or 0): what greedy drafting would have proposed
    max_new_tokens*         the most tokens that the text could have had, the same on all its lines

A text of fewer tokens than its max_new_tokens ended by a stop token, which is its last one. Decoding learns of a stop
token only when it has verified it: it drafts whole blocks up to there, past the end as well, where it drafts fewer
tokens near max_new_tokens. Without the column every text is taken to have ended by length, at its last token.

The parquet metadata holds, under the key ``specbench.trace``, a JSON object with the format's version and an Identity.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import Float32, Int64

from specbench.core.errors import ConfigError
from specbench.core.machine.files import Origin, is_text, problem_of, reason, shown
from specbench.replay.values import KEY, Where, check_greedy, check_keys, check_values, names, numbers, sampler_of

TRACE = "trace.parquet"
VERSION = 1
_METADATA = b"specbench.trace"
REQUIRED = ("log_p", "log_q")
_NEEDED = ("prompt", "sample", "position", "token", *REQUIRED)
OPTIONAL = ("overlap", "target_entropy", "draft_entropy", "draft_confidence", "argmax_agree", "draft_argmax")
LIMIT = "max_new_tokens"
NAMES = ("target", "draft", "dtype", "source")
_REMEDY = "Record one with protocol=record, or see specbench/replay/trace.py for the format."

FIELDS = [
    ("prompt", pa.string()),
    ("sample", pa.int64()),
    ("position", pa.int64()),
    ("token", pa.int64()),
    *((name, pa.float32()) for name in (*REQUIRED, *OPTIONAL)),
    (LIMIT, pa.int64()),
]
_COLUMNS = [name for name, _ in FIELDS]


@dataclass(frozen=True)
class Identity:
    """What the texts are samples of.

    Attributes:
        sampler: temperature, top_k, top_p and min_p of both.
        dtype: the models' number format; in 16 bits, log-probabilities carry errors of about 1e-2.
        source: the command or engine that made the trace.
        processors: what sampler.processors said, as JSON; empty for none.
        shaping: penalties, biases and bans, as JSON; empty for none, and in traces older than them.
    """

    target: str
    draft: str
    sampler: Mapping[str, float]
    dtype: str
    source: str
    processors: str = ""
    shaping: str = ""


def trace_schema(identity: Identity) -> pa.Schema:
    """The columns, with the identity in the metadata."""
    written = {"version": VERSION, **dataclasses.asdict(identity)}
    return pa.schema(FIELDS, metadata={_METADATA: json.dumps(written).encode()})


@dataclass(frozen=True)
class Trace:
    """T tokens of n texts, one after the other. Made by ``trace_of``, which checks it.

    Attributes:
        prompts: the name of each text's prompt, which texts of one prompt share.
        starts: index of each text's first token, and T at the end.
        columns: log_p and log_q, and those of OPTIONAL that the trace has.
        limits: the most tokens that each text could have had; as many as it has where nothing is known.
        path: the file that the trace was read from, for messages; None if it was made in memory.
    """

    identity: Identity
    prompts: Sequence[str]
    starts: Int64[np.ndarray, " n1"]
    tokens: Int64[np.ndarray, " T"]
    columns: Mapping[str, Float32[np.ndarray, " T"]]
    limits: Int64[np.ndarray, " n"]
    path: str | Path | None = None

    def __repr__(self) -> str:
        return f"Trace({len(self)} tokens of {len(self.prompts)} texts, {self.identity})"

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def conversations(self) -> list[str]:
        """The first turn's prompt of each text's conversation, or its own: what intervals resample together."""
        return [first_turn(name) for name in self.prompts]

    @property
    def lengths(self) -> Int64[np.ndarray, " n"]:
        """Tokens of each text."""
        return np.diff(self.starts)

    @property
    def remaining(self) -> Int64[np.ndarray, " T"]:
        """Tokens from each one to the end of its text, itself included."""
        return np.repeat(self.starts[1:], self.lengths) - np.arange(len(self))

    @property
    def draft_limits(self) -> Int64[np.ndarray, " T"]:
        """The most tokens that a block which starts at each one drafts, one less than may still be emitted."""
        return self.remaining - 1 + np.repeat(self.limits - self.lengths, self.lengths)

    @property
    def acceptance_limits(self) -> Int64[np.ndarray, " T"]:
        """Of those, the ones that the text tells of. Nothing is known behind a stop token."""
        return np.minimum(self.draft_limits, self.remaining)

    def column(self, name: str, purpose: str) -> Float32[np.ndarray, " T"]:
        """A column that not every trace has. Raises ConfigError if it is missing."""
        if name not in self.columns:
            problem = f"no {name} in the trace, which {purpose} needs"
            raise ConfigError(KEY, self.path or self.identity.source, problem, _REMEDY)
        return self.columns[name]

    def texts(self, first: int, last: int) -> Trace:
        """The texts first, ..., last - 1 as a trace of their own."""
        span = slice(int(self.starts[first]), int(self.starts[last]))
        return Trace(
            self.identity,
            self.prompts[first:last],
            self.starts[first : last + 1] - self.starts[first],
            self.tokens[span],
            {name: values[span] for name, values in self.columns.items()},
            self.limits[first:last],
            self.path,
        )


def first_turn(prompt: str) -> str:
    """The name of the first turn of a prompt's conversation (runs/workloads/prompts.py); its own of any other."""
    return re.sub(r"#turn-\d+$", "", prompt)


def read_trace(path: str | Path) -> Trace:
    """Reads and checks a parquet trace.

    Raises:
        ConfigError: no such file, not a trace, missing columns, or values that cannot be (see trace_of).
    """
    check_file(path)
    source = Origin(KEY, path, _REMEDY)
    # Not read_table, which takes columns from folders named x=1 as well.
    with source.library_errors("cannot be read as parquet"), pq.ParquetFile(path) as file:
        written = file.schema_arrow.names
        columns = [name for name in written if name in _COLUMNS]
        table = file.read(columns=columns)
    if missing := [name for name in _NEEDED if name not in written]:
        raise source.wrong(f"no column {', '.join(missing)}")
    if twice := sorted({name for name in columns if columns.count(name) > 1}):
        raise source.wrong(f"several columns named {', '.join(twice)}")
    check_keys(written, _COLUMNS, source, "the table")
    return trace_of(table, _identity(table.schema.metadata or {}, source), path)


def check_file(path: str | Path) -> None:
    """Raises ConfigError for a path that cannot be a trace by its looks."""
    path, source = Path(path), Origin(KEY, path, _REMEDY)
    if path.is_dir():
        inside = path / TRACE
        remedy = f"Give {TRACE} in it: protocol.trace={inside}" if inside.is_file() else _REMEDY
        raise source.wrong("a folder", remedy)
    if problem := problem_of(path):
        raise source.wrong(problem)
    if path.suffix == ".json":
        raise source.wrong("not a parquet file by its name", "If it holds JSON lines, name it .jsonl.")


def _identity(metadata: Mapping[bytes, bytes], source: Origin) -> Identity:
    if _METADATA not in metadata:
        raise source.wrong(f"its metadata does not say what it is a trace of (no {_METADATA.decode()})")
    written = source.parsed(metadata[_METADATA], "its metadata")
    try:
        if not isinstance(written, dict):
            raise ValueError(f"{shown(written)} is not an object")
        if written.pop("version") != VERSION:
            raise source.wrong(f"not of the trace format's version {VERSION}")
        check_names(written)
        if not isinstance(written["sampler"], dict):
            raise ValueError(f"sampler is {shown(written['sampler'])}, not an object")
        if not isinstance(json.loads(written.get("shaping") or "{}"), dict):
            raise ValueError(f"shaping is {shown(written['shaping'])}, not an object")
        sampler = sampler_of(written.pop("sampler"))
        return Identity(sampler=sampler, **written)
    except (KeyError, ValueError, TypeError) as error:
        problem = f"its metadata does not say what it is a trace of ({type(error).__name__}: {reason(error)})"
        raise source.wrong(problem) from error


def check_names(given: Mapping[str, object]) -> None:
    """Raises ValueError for a target, draft, dtype or source that is no text."""
    for name in NAMES:
        if not isinstance(value := given[name], str) or not is_text(value):
            raise ValueError(f"{name} is {shown(value)}, not a text")


def trace_of(table: pa.Table, identity: Identity, path: str | Path, lines: Sequence[int] | None = None) -> Trace:
    """A trace of a table with at least the required columns.

    Args:
        lines: for messages, the line of the file that each row stands on; None: rows are counted from 0.

    Raises:
        ConfigError: an empty table; a text that occurs twice; positions that do not count 0, 1, 2, ...; a null in a
            required column; values that a column cannot have (values.py), such as a log_p other than 0 at
            temperature 0; a limit below its text's length.
    """
    source = Origin(KEY, path, _REMEDY)
    if table.num_rows == 0:
        raise source.wrong("the trace is empty")
    for name in _NEEDED:
        if table[name].null_count:
            raise source.wrong(f"{table[name].null_count} nulls in {name}")

    def where(row: int) -> str:
        return f"line {row if lines is None else lines[row]}"

    prompt = names(table["prompt"], source, where)
    sample, position, tokens = (numbers(table, name, pa.int64(), source) for name in ("sample", "position", "token"))
    starts = _starts(prompt, sample, position, source, where)
    check_values({"token": tokens}, source, where)
    present = [name for name in OPTIONAL if name in table.column_names and not table[name].null_count]
    columns = {name: numbers(table, name, pa.float32(), source) for name in (*REQUIRED, *present)}
    check_values(columns, source, where)
    if identity.sampler["temperature"] == 0:
        check_greedy(columns["log_p"], source, where)
    limits = _limits(table, starts, source, where)
    return Trace(identity, prompt[starts[:-1]].tolist(), starts, tokens, columns, limits, path)


def _starts(
    prompt: np.ndarray, sample: np.ndarray, position: np.ndarray, source: Origin, where: Where
) -> Int64[np.ndarray, " n1"]:
    """Where texts begin, and the number of rows at the end."""
    begins = np.append(True, (prompt[1:] != prompt[:-1]) | (sample[1:] != sample[:-1]) | (position[1:] == 0))
    starts = np.append(np.flatnonzero(begins), len(prompt)).astype(np.int64)
    seen = set()
    for row in starts[:-1].tolist():
        text = (prompt[row], int(sample[row]))
        if text in seen:
            problem = f"prompt {text[0]!r}, sample {text[1]}, occurs twice, again in {where(row)}"
            raise source.wrong(problem, "Number the samples of a prompt, and keep a text's lines together.")
        seen.add(text)
    expected = np.arange(len(prompt)) - np.repeat(starts[:-1], np.diff(starts))
    if (position != expected).any():
        row = int(np.flatnonzero(position != expected)[0])
        problem = f"{where(row)} has position {position[row]} where {expected[row]} is due"
        raise source.wrong(problem, "Positions of each text must count 0, 1, 2, ...")
    return starts


def _limits(table: pa.Table, starts: np.ndarray, source: Origin, where: Where) -> np.ndarray:
    lengths = np.diff(starts)
    if LIMIT not in table.column_names or table[LIMIT].null_count == table.num_rows:
        return lengths
    written = numbers(table, LIMIT, pa.int64(), source, null=-1)
    limits = written[starts[:-1]]
    limits = np.where(limits == -1, lengths, limits)
    wrong = (written != np.repeat(written[starts[:-1]], lengths)) | (np.repeat(limits < lengths, lengths))
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        shown_limit = "null" if table[LIMIT][row].as_py() is None else written[row]
        problem = f"{LIMIT} is {shown_limit} in {where(row)}, unlike before in its text or below the text's length"
        raise source.wrong(problem, "Write the same number on all lines of a text, at least its tokens.")
    return limits
