"""Traces made elsewhere: prompt log-probabilities of serving engines, as JSON lines.

The first line says what the texts are samples of:

    {"specbench_trace": 1, "target": "...", "draft": "...", "sampler": {"temperature": 1.0, "top_k": 0, "top_p": 1.0,
     "min_p": 0.0}, "source": "vLLM 0.11", "dtype": "bfloat16"}

and each further line holds one text that the target sampled, without its prompt, scored by both models in natural
logarithms:

    {"prompt_id": "a", "sample": 0, "token_ids": [5, 17, 2], "target_logprobs": [...], "draft_logprobs": [...]}

``sample`` may be left out where a prompt has one text. Where texts end by a stop token, say ``max_new_tokens`` on their
lines, the most tokens that the engine would have sampled, and leave the stop token in: replay/trace.py says why.

``first_token`` in the first line says which step of the engine emits a text's first token:

    "step"      the default: the first verification does, as in specbench
    "prefill"   the pass over the prompt does, as in most engines, which draft from the second token on

"prefill" leaves each text's first token out and takes 1 from its max_new_tokens, so that the second token begins the
trace. A text of one token is left out, because no step was taken for it.

A key that resembles a missing one of these, such as max_tokens, is refused. Other keys are ignored.

A log-probability may be a number; SGLang's [logprob, token_id, text] (``input_token_logprobs``); or vLLM's {"17":
{"logprob": -0.4, ...}, ...} (``prompt_logprobs``), of which the entry of the token at hand is taken. -Infinity is
allowed for the draft.

Texts must have been sampled by the very sampler that the log-probabilities are of. Log-probabilities that engines give
for a prompt are of the raw logits, that is of temperature 1 without truncation, whatever sampler the request names:

    vLLM    processed_logprobs and raw_logprobs are alike there, as its own pull request 47680 (July 2026) has it:
            "processed logprobs is not apply to prompt logprobs"; 37082, open since March 2026, would add a temperature
    SGLang  log_softmax(logits) "regardless of decoding temperature", says its pull request 36213, open since August
            2026, which would add one; THUDM/slime 2319 shows equal numbers at temperatures 0.5, 1 and 2

So an engine's numbers will do for texts that were sampled at temperature 1 without truncation. For any other sampler
score the texts again with code that applies the sampler to all logits, as protocols/scoring.py does. Entries in an
engine's own form under another sampler are refused.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from specbench.core.checks import is_number, is_whole
from specbench.core.errors import ConfigError
from specbench.core.machine.files import Origin, is_name, reason, shown
from specbench.core.sampling_params import SamplingParams
from specbench.replay.trace import (
    FIELDS,
    LIMIT,
    NAMES,
    OPTIONAL,
    VERSION,
    Identity,
    Trace,
    check_file,
    check_names,
    read_trace,
    trace_of,
)
from specbench.replay.values import KEY, NAME, SAMPLER, check_keys, sampler_of

_FORMAT = "See specbench/replay/imports.py for the lines that are expected."
_DROP = "Drop the prompt: an engine's first entry has none, and a line holds the continuation alone."
_RESCORE = (
    "Score the texts again with the sampler that they were sampled with; where your engine did so, write numbers. "
    "specbench/replay/imports.py says more."
)
_PLAIN = sampler_of(SamplingParams().numbers)
FIRST, STEP, PREFILL = "first_token", "step", "prefill"
_HEADER_KEYS = ("specbench_trace", "sampler", *NAMES, FIRST)
_TEXT_KEYS = ("prompt_id", "sample", "token_ids", "target_logprobs", "draft_logprobs", LIMIT)
_LARGEST = 10**30  # of whole numbers, which JSON may have of any size


def read_any(path: str | Path) -> Trace:
    """A parquet trace, or JSON lines where the file's name ends in .jsonl.

    Raises:
        ConfigError: a file that cannot be read, or what is in it (the line is named).
    """
    return read_json_lines(path) if Path(path).suffix == ".jsonl" else read_trace(path)


def read_json_lines(path: str | Path) -> Trace:
    """See the module. Raises ConfigError."""
    check_file(path)
    source = Origin(KEY, path, _FORMAT)
    numbered = [
        (number, _object(source.parsed(line, f"line {number}"), number, source)) for number, line in source.lines(path)
    ]
    if not numbered:
        raise source.wrong("the trace is empty")
    header = numbered[0][1]
    identity = _identity(header, source)
    rows = [(number, row) for number, entry in numbered[1:] for row in _rows(entry, identity, number, source)]
    if header.get(FIRST) == PREFILL:
        rows = [(number, _moved(row)) for number, row in rows if row["position"] > 0]
    table = pa.Table.from_pylist([row for _, row in rows], schema=pa.schema(FIELDS))
    return trace_of(table, identity, path, [number for number, _ in rows])


def _object(parsed: Any, number: int, source: Origin) -> dict[str, Any]:
    if not isinstance(parsed, dict):
        raise source.wrong(f"line {number} is not a JSON object")
    return parsed


def _identity(header: Mapping[str, Any], source: Origin) -> Identity:
    sampler = header.get("sampler")
    if header.get("specbench_trace") != VERSION or not isinstance(sampler, dict) or set(sampler) != set(SAMPLER):
        problem = f"the first line does not name the format ({VERSION}) and the sampler ({', '.join(SAMPLER)})"
        raise source.wrong(problem)
    check_keys(header, _HEADER_KEYS, source, "the first line", elsewhere=[LIMIT])
    if header.get(FIRST, STEP) not in (STEP, PREFILL):
        raise source.wrong(f"{FIRST} is {shown(header[FIRST])}, neither {STEP} nor {PREFILL}")
    names = {name: header.get(name, "unknown") for name in NAMES}
    try:
        check_names(names)
    except ValueError as error:
        raise source.wrong(f"the first line does not say what it is of ({error})") from error
    try:
        return Identity(sampler=sampler_of(sampler), **names)
    except ValueError as error:
        raise source.wrong(f"the sampler of the first line is not valid ({reason(error)})") from error


def _rows(entry: Mapping[str, Any], identity: Identity, number: int, source: Origin) -> list[dict[str, Any]]:
    def wrong(problem: str, remedy: str | None = None) -> ConfigError:
        return source.wrong(f"line {number}{problem}", remedy)

    check_keys(entry, _TEXT_KEYS, source, f"line {number}", elsewhere=[FIRST])
    lists = [entry.get(name) for name in ("token_ids", "target_logprobs", "draft_logprobs")]
    if "prompt_id" not in entry or not all(isinstance(values, list) for values in lists):
        raise wrong(" lacks prompt_id, token_ids, target_logprobs or draft_logprobs")
    tokens, log_p, log_q = (values or [] for values in lists)
    prompt, sample, limit = entry["prompt_id"], entry.get("sample", 0), entry.get(LIMIT)
    if not (_whole(prompt) or (isinstance(prompt, str) and is_name(prompt))):
        raise wrong(f": prompt_id {shown(prompt)} is no name or number", NAME)
    if not _whole(sample):
        raise wrong(f": sample {shown(sample)} is not a whole number")
    if not len(tokens) == len(log_p) == len(log_q):
        raise wrong(": lists of different lengths")
    if not tokens:
        raise wrong(": a text without tokens", "Leave the line out.")
    if limit is not None and not (_whole(limit) and limit >= len(tokens)):
        raise wrong(f": {LIMIT} {shown(limit)} is no number of at least the text's {len(tokens)} tokens")
    if unlike := [token for token in tokens if not (_whole(token) and token >= 0)]:
        raise wrong(f": token {shown(unlike[0])} is not an id")
    if log_p[0] is None or log_q[0] is None:
        raise wrong(f": no log-probability for token {tokens[0]}, the first", _DROP)
    if identity.sampler != _PLAIN and any(isinstance(value, dict | list) for value in (*log_p, *log_q)):
        raise wrong(" has an engine's own entries, which are of temperature 1 without truncation", _RESCORE)
    return [
        {
            "prompt": str(prompt),
            "sample": sample,
            "position": position,
            "token": token,
            "log_p": _logprob(log_p[position], token, number, source),
            "log_q": _logprob(log_q[position], token, number, source),
            **dict.fromkeys(OPTIONAL),
            LIMIT: limit,
        }
        for position, token in enumerate(tokens)
    ]


def _moved(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row of a text whose first token is left out."""
    limit = row[LIMIT]
    return {**row, "position": row["position"] - 1, LIMIT: None if limit is None else limit - 1}


def _whole(value: object) -> bool:
    return is_whole(value) and abs(value) < 2**63


def _logprob(value: Any, token: int, number: int, source: Origin) -> float:
    if isinstance(value, dict):  # vLLM
        value = value.get(str(token))
        value = value.get("logprob") if isinstance(value, dict) else value
    elif isinstance(value, list) and len(value) >= 2:  # SGLang
        if value[1] != token:
            raise source.wrong(f"line {number}: a log-probability of token {shown(value[1])}, not {token}")
        value = value[0]
    if not is_number(value) or (is_whole(value) and abs(value) > _LARGEST):
        raise source.wrong(f"line {number}: no log-probability for token {token}")
    return float(value)
