"""Traces: what target and draft think of each token of texts that were sampled from the target. One parquet file.

One line a token, in the order of the text, with these columns (float32; those marked * may be null in an import):

    prompt, sample          which text: the prompt's name, and a number where a prompt was continued several times
    position                0, 1, 2, ... within the continuation
    token                   its id
    log_p, log_q            log-probability under target and draft, by the sampler the text was sampled with
    overlap*                sum over the vocabulary of min(p, q)
    target_entropy*, draft_entropy*    nats, of p and q
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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import Float32, Int64

from specbench.errors import ConfigError

TRACE = "trace.parquet"
VERSION = 1
KEY = "protocol.trace"
_METADATA = b"specbench.trace"
REQUIRED = ("log_p", "log_q")
OPTIONAL = ("overlap", "target_entropy", "draft_entropy", "argmax_agree", "draft_argmax")
LIMIT = "max_new_tokens"
SAMPLER = ("temperature", "top_k", "top_p", "min_p")
_REMEDY = "Record one with protocol=record, or see specbench/replay/trace.py for the format."

FIELDS = [
    ("prompt", pa.string()),
    ("sample", pa.int64()),
    ("position", pa.int64()),
    ("token", pa.int64()),
    *((name, pa.float32()) for name in (*REQUIRED, *OPTIONAL)),
    (LIMIT, pa.int64()),
]


@dataclass(frozen=True)
class Identity:
    """What the texts are samples of.

    Attributes:
        target, draft: names of the models.
        sampler: temperature, top_k, top_p and min_p of both.
        dtype: the models' number format; in 16 bits, log-probabilities carry errors of about 1e-2.
        source: the command or engine that made the trace.
    """

    target: str
    draft: str
    sampler: Mapping[str, float]
    dtype: str
    source: str


def trace_schema(identity: Identity) -> pa.Schema:
    """The columns, with the identity in the metadata."""
    written = {"version": VERSION, **dataclasses.asdict(identity)}
    return pa.schema(FIELDS, metadata={_METADATA: json.dumps(written).encode()})


@dataclass(frozen=True)
class Trace:
    """T tokens of n texts, one after the other. Made by ``trace_of``, which checks it.

    Attributes:
        prompts: the name of each text's prompt; texts of one prompt share it, and are resampled together.
        starts: index of each text's first token, and T at the end.
        columns: log_p and log_q, and those of OPTIONAL that the trace has.
        limits: the most tokens that each text could have had; None: as many as it has.
    """

    identity: Identity
    prompts: Sequence[str]
    starts: Int64[np.ndarray, " n1"]
    tokens: Int64[np.ndarray, " T"]
    columns: Mapping[str, Float32[np.ndarray, " T"]]
    limits: Int64[np.ndarray, " n"] | None = None

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def lengths(self) -> Int64[np.ndarray, " n"]:
        """Tokens of each text."""
        return np.diff(self.starts)

    @property
    def remaining(self) -> Int64[np.ndarray, " T"]:
        """Tokens from each one to the end of its text, itself included."""
        return np.repeat(self.starts[1:], self.lengths) - np.arange(len(self))

    @property
    def room(self) -> Int64[np.ndarray, " T"]:
        """The most tokens that a block which starts at each one drafts: one less than may still be emitted."""
        spare = np.zeros(len(self.lengths), dtype=np.int64) if self.limits is None else self.limits - self.lengths
        return self.remaining - 1 + np.repeat(spare, self.lengths)

    @property
    def known(self) -> Int64[np.ndarray, " T"]:
        """Of those, the ones that the text tells of: nothing is known behind a stop token."""
        return np.minimum(self.room, self.remaining)

    def column(self, name: str, purpose: str) -> Float32[np.ndarray, " T"]:
        """A column that not every trace has.

        Raises:
            ConfigError: it is missing.
        """
        if name not in self.columns:
            raise ConfigError(KEY, self.identity.source, f"no {name} in the trace, which {purpose} needs", _REMEDY)
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
            None if self.limits is None else self.limits[first:last],
        )


def read_trace(path: str | Path) -> Trace:
    """Reads and checks a parquet trace.

    Raises:
        ConfigError: no such file, not a trace, missing columns, or values that cannot be (see trace_of).
    """
    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowInvalid) as error:
        raise ConfigError(KEY, path, f"cannot be read ({str(error).splitlines()[0]})", _REMEDY) from error
    missing = [name for name in ("prompt", "sample", "position", "token", *REQUIRED) if name not in table.column_names]
    if missing:
        raise ConfigError(KEY, path, f"no column {', '.join(missing)}", _REMEDY)
    return trace_of(table, _identity(table.schema.metadata or {}, path), path)


def _identity(metadata: Mapping[bytes, bytes], path: str | Path) -> Identity:
    try:
        written = json.loads(metadata[_METADATA])
        if written.pop("version") != VERSION:
            raise ConfigError(KEY, path, f"not of the trace format's version {VERSION}", _REMEDY)
        identity = Identity(**written)
        if set(identity.sampler) != set(SAMPLER):
            raise ValueError(f"sampler of {sorted(identity.sampler)}")
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        problem = f"its metadata does not say what it is a trace of ({type(error).__name__}: {error})"
        raise ConfigError(KEY, path, problem, _REMEDY) from error
    return identity


def trace_of(table: pa.Table, identity: Identity, path: str | Path) -> Trace:
    """A trace of a table with at least the required columns.

    Raises:
        ConfigError: an empty table; positions that do not count 0, 1, 2, ...; log_p not finite or above 0; log_q NaN
            or above 0; a null in a required column; an optional column out of its range.
    """
    if table.num_rows == 0:
        raise ConfigError(KEY, path, "the trace is empty", _REMEDY)
    for name in ("prompt", "sample", "position", "token", *REQUIRED):
        if table[name].null_count:
            raise ConfigError(KEY, path, f"{table[name].null_count} nulls in {name}", _REMEDY)
    prompt = np.asarray(table["prompt"].to_pylist(), dtype=object)
    sample, position, tokens = (table[name].to_numpy().astype(np.int64) for name in ("sample", "position", "token"))
    begins = np.append(True, (prompt[1:] != prompt[:-1]) | (sample[1:] != sample[:-1]))
    starts = np.append(np.flatnonzero(begins), len(tokens)).astype(np.int64)
    expected = np.arange(len(tokens)) - np.repeat(starts[:-1], np.diff(starts))
    if (position != expected).any():
        row = int(np.flatnonzero(position != expected)[0])
        problem = f"line {row} has position {position[row]} where {expected[row]} is due"
        raise ConfigError(KEY, path, problem, "Positions of each text must count 0, 1, 2, ...")
    texts = list(zip(prompt[starts[:-1]].tolist(), sample[starts[:-1]].tolist(), strict=True))
    if len(set(texts)) < len(texts):
        raise ConfigError(KEY, path, "a (prompt, sample) occurs twice", "Number the samples of a prompt.")
    present = [name for name in OPTIONAL if name in table.column_names and not table[name].null_count]
    columns = {name: table[name].to_numpy().astype(np.float32) for name in (*REQUIRED, *present)}
    _check_values(columns, path)
    return Trace(identity, [name for name, _ in texts], starts, tokens, columns, _limits(table, starts, path))


def _limits(table: pa.Table, starts: np.ndarray, path: str | Path) -> np.ndarray | None:
    if LIMIT not in table.column_names or table[LIMIT].null_count == table.num_rows:
        return None
    lengths = np.diff(starts)
    written = table[LIMIT].fill_null(-1).to_numpy()
    limits = written[starts[:-1]]
    limits = np.where(limits == -1, lengths, limits)
    wrong = (written != np.repeat(written[starts[:-1]], lengths)) | (np.repeat(limits < lengths, lengths))
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        problem = f"{LIMIT} is {written[row]} in line {row}, another than before in its text or below the text's length"
        raise ConfigError(KEY, path, problem, "Write the same number on all lines of a text, at least its tokens.")
    return limits


def _check_values(columns: Mapping[str, np.ndarray], path: str | Path) -> None:
    for name, values in columns.items():
        high = {"log_p": 0.0, "log_q": 0.0, "overlap": 1 + 1e-5}.get(name, np.inf)
        low = -np.inf if name in REQUIRED else -1e-5
        wrong = np.isnan(values) | (values > high) | (values < low)
        if name == "log_p":  # a sampled token had a probability; a draft may have given it none
            wrong |= np.isneginf(values)
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            problem = f"{name} is {values[row]} in line {row} (and {int(wrong.sum()) - 1} more are impossible)"
            raise ConfigError(KEY, path, problem, "log_p must be finite, neither log above 0 or NaN.")


def check_sampler(trace: Trace, wanted: Mapping[str, float | int], path: str | Path) -> None:
    """Raises ConfigError where the trace was sampled with another sampler than the one asked for."""
    for name in SAMPLER:
        held, asked = (max(0.0, float(sampler[name])) for sampler in (trace.identity.sampler, wanted))  # top_k -1 is 0
        if held != asked:
            raise ConfigError(
                f"sampler.{name}",
                wanted[name],
                f"the trace {path} was sampled with {name} {held:g}, and one sampler's acceptance is not another's",
                f"Add sampler.{name}={held:g} to replay it, or record another trace.",
            )
