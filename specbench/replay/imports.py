"""Traces made elsewhere: prompt log-probabilities of serving engines, as JSON lines.

The first line says what the texts are samples of:

    {"specbench_trace": 1, "target": "...", "draft": "...", "sampler": {"temperature": 1.0, "top_k": 0, "top_p": 1.0,
     "min_p": 0.0}, "source": "vLLM 0.11", "dtype": "bfloat16"}

and each further line holds one text that the target sampled, without its prompt, scored by both models:

    {"prompt_id": "a", "sample": 0, "token_ids": [5, 17, 2], "target_logprobs": [...], "draft_logprobs": [...]}

``sample`` may be left out where a prompt has one text. Where texts end by a stop token, say ``max_new_tokens`` on their
lines, the most tokens that the engine would have sampled, and leave the stop token in: replay/trace.py says why.

A log-probability may be a number; SGLang's [logprob, token_id, text] (``input_token_logprobs``); or vLLM's {"17":
{"logprob": -0.4, ...}, ...} (``prompt_logprobs``), of which the entry of the token at hand is taken. -Infinity is
allowed for the draft.

Engines report log-probabilities of the model's raw logits unless told otherwise (vLLM: --logprobs-mode
processed_logprobs), which are those of the sampler at temperature 1 without truncation alone. Texts must have been
sampled by the very sampler that the log-probabilities are of.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from specbench.errors import ConfigError
from specbench.replay.trace import FIELDS, KEY, LIMIT, OPTIONAL, SAMPLER, VERSION, Identity, Trace, read_trace, trace_of

_FORMAT = "See specbench/replay/imports.py for the lines that are expected."


def read_any(path: str | Path) -> Trace:
    """A parquet trace, or JSON lines where the file's name ends in .jsonl.

    Raises:
        ConfigError: a file that cannot be read, or what is in it (the line is named).
    """
    return read_json_lines(path) if Path(path).suffix == ".jsonl" else read_trace(path)


def read_json_lines(path: str | Path) -> Trace:
    """See the module. Raises ConfigError."""
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(KEY, path, f"cannot be read ({error})", _FORMAT) from error
    numbered = [(i, _parsed(line, i, path)) for i, line in enumerate(lines, start=1) if line.strip()]
    if not numbered:
        raise ConfigError(KEY, path, "the trace is empty", _FORMAT)
    identity = _identity(numbered[0][1], path)
    rows = [row for number, entry in numbered[1:] for row in _rows(entry, number, path)]
    table = pa.Table.from_pylist(rows, schema=pa.schema(FIELDS))
    return trace_of(table, identity, path)


def _parsed(line: str, number: int, path: str | Path) -> dict[str, Any]:
    try:
        entry = json.loads(line)
    except json.JSONDecodeError as error:
        raise ConfigError(KEY, path, f"line {number} is not JSON ({error})", _FORMAT) from error
    if not isinstance(entry, dict):
        raise ConfigError(KEY, path, f"line {number} is not a JSON object", _FORMAT)
    return entry


def _identity(header: Mapping[str, Any], path: str | Path) -> Identity:
    sampler = header.get("sampler")
    if header.get("specbench_trace") != VERSION or not isinstance(sampler, dict) or set(sampler) != set(SAMPLER):
        problem = f"the first line does not name the format ({VERSION}) and the sampler ({', '.join(SAMPLER)})"
        raise ConfigError(KEY, path, problem, _FORMAT)
    names = {name: str(header.get(name, "unknown")) for name in ("target", "draft", "dtype", "source")}
    try:
        return Identity(sampler={name: float(value) for name, value in sampler.items()}, **names)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            KEY, path, f"the sampler of the first line is no set of numbers ({error})", _FORMAT
        ) from error


def _rows(entry: Mapping[str, Any], number: int, path: str | Path) -> list[dict[str, Any]]:
    lists = [entry.get(name) for name in ("token_ids", "target_logprobs", "draft_logprobs")]
    if "prompt_id" not in entry or not all(isinstance(values, list) for values in lists):
        problem = f"line {number} lacks prompt_id, token_ids, target_logprobs or draft_logprobs"
        raise ConfigError(KEY, path, problem, _FORMAT)
    tokens, log_p, log_q = (values or [] for values in lists)
    if not len(tokens) == len(log_p) == len(log_q):
        raise ConfigError(KEY, path, f"line {number}: lists of different lengths", _FORMAT)
    limit = entry.get(LIMIT)
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < len(tokens)):
        problem = f"line {number}: {LIMIT} {limit!r} is no number of at least the text's {len(tokens)} tokens"
        raise ConfigError(KEY, path, problem, _FORMAT)
    rows = []
    for position, token in enumerate(tokens):
        if isinstance(token, bool) or not isinstance(token, int):
            raise ConfigError(KEY, path, f"line {number}: token {token!r} is not an id", _FORMAT)
        rows.append(
            {
                "prompt": str(entry["prompt_id"]),
                "sample": int(entry.get("sample", 0)),
                "position": position,
                "token": token,
                "log_p": _logprob(log_p[position], token, number, path),
                "log_q": _logprob(log_q[position], token, number, path),
                **dict.fromkeys(OPTIONAL),
                LIMIT: limit,
            }
        )
    return rows


def _logprob(value: Any, token: int, number: int, path: str | Path) -> float:
    if isinstance(value, dict):  # vLLM
        value = value.get(str(token))
        value = value.get("logprob") if isinstance(value, dict) else value
    elif isinstance(value, list) and len(value) >= 2:  # SGLang
        if value[1] != token:
            raise ConfigError(KEY, path, f"line {number}: a log-probability of token {value[1]}, not {token}", _FORMAT)
        value = value[0]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(KEY, path, f"line {number}: no log-probability for token {token}", _FORMAT)
    return float(value)
