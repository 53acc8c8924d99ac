"""What a row says as a request to an engine: sampling parameters, draft length and length of its own.

Read are the fields of OpenAI's completions and chat completions as vLLM and SGLang extend them; lines of OpenAI's batch
files, which hold the request under "body"; and SGLang's own requests, with its parameters under "sampling_params".
What a parameter means, and which of them can be run, sampling_params.py knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specbench.files import Source, shown

LENGTHS = ("max_new_tokens", "max_tokens", "max_completion_tokens")  # three names of one thing
COUNTS = ("gamma", "seed", *LENGTHS)
SAMPLING = (
    *("n", "temperature", "top_p", "top_k", "min_p", "typical_p"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "allowed_token_ids", "bad_words"),
    *("stop", "stop_token_ids", "include_stop_str_in_output", "ignore_eos", "min_tokens", "min_new_tokens"),
    *("logprobs", "prompt_logprobs", "top_logprobs", "skip_special_tokens", "truncate_prompt_tokens"),
    *("response_format", "structured_outputs", "guided_json", "guided_regex", "guided_grammar", "guided_choice"),
    *("json_schema", "regex", "ebnf"),
)
CHANGES_PROMPT = ("tools", "functions", "suffix", "echo", "chat_template", "chat_template_kwargs")
_WRAPPERS = ("body", "request")
_LEAVE_OUT = "Leave it out of the line, or let no line have parameters of its own: workload.parameters=false."


def unwrapped(row: Any) -> Any:
    """The request within a line of a log, beside what else the line says; a row without one as it is."""
    if not isinstance(row, Mapping):
        return row
    for name in _WRAPPERS:
        inner = row.get(name)
        if isinstance(inner, Mapping) and {"prompt", "messages", "text"} & set(inner):
            return {**{key: value for key, value in row.items() if key != name}, **inner}
    return row


def own_parameters(row: Mapping[str, Any], place: str, source: Source) -> dict[str, Any]:
    """What a row says of these; null counts as not said, and the length is called max_new_tokens.

    Raises:
        ConfigError: two lengths that differ, or a field that would make another prompt.
    """
    inner = row.get("sampling_params")
    said = {**row, **inner} if isinstance(inner, Mapping) else row
    for name in CHANGES_PROMPT:
        if said.get(name):
            raise source.wrong(f"{place}: {name} {shown(said[name])} of the request cannot be run", _LEAVE_OUT)
    own = {name: said[name] for name in (*COUNTS, *SAMPLING) if said.get(name) is not None}
    lengths = {name: own.pop(name) for name in LENGTHS if name in own}
    if len({repr(each) for each in lengths.values()}) > 1:
        told = ", ".join(f"{name} {shown(value)}" for name, value in lengths.items())
        raise source.wrong(f"{place}: {told} are the same parameter with different values", "Leave one of them out.")
    return own | {"max_new_tokens": value for value in lengths.values()}
