"""What a row says as a request to an engine: sampling parameters, draft length and length of its own.

Read are the fields of OpenAI's completions and chat completions as vLLM and SGLang extend them; lines of OpenAI's batch
files, which hold the request under "body"; and SGLang's own requests, with its parameters under "sampling_params".
What a parameter means, and its range, specbench/core/sampling_params.py knows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Set
from typing import Any

from specbench.core.machine.files import Origin, shown
from specbench.core.sampling_params import SamplingParams

LENGTHS = ("max_new_tokens", "max_tokens", "max_completion_tokens")  # three names of one thing
RENAMED = dict.fromkeys(LENGTHS, "max_new_tokens")
PARAMETERS = {RENAMED.get(field.name, field.name) for field in dataclasses.fields(SamplingParams)} - {"processors"} | {
    "gamma"
}
# Other engines' names of what is known here by another one. These are also columns of data sets, and stand in
# sampling_params alone.
OF_SGLANG = ("json_schema", "regex", "ebnf")
REFUSED = (
    *("tools", "functions", "suffix", "echo", "chat_template", "chat_template_kwargs", "typical_p", "best_of"),
    *("use_beam_search", "stop_regex", "structural_tag", "custom_logit_processor", "reasoning_effort"),
    *("continue_final_message", "prompt_embeds", "lora_path", "min_new_tokens", "thinking_budget"),
    *("guided_json", "guided_regex", "guided_grammar", "guided_choice", "response_format"),  # structured_outputs here
)
HARMLESS = {"best_of": 1, "response_format": {"type": "text"}}
FRAMING = ("add_generation_prompt", "add_special_tokens")  # what stands around a prompt
FIELDS = {*PARAMETERS, *RENAMED, *REFUSED, *FRAMING, "sampling_params"}
_LEAVE_OUT = "Leave it out of the line, or let no line have parameters of its own: workload.parameters=false."


def unwrapped(row: Any, place: str, source: Origin, read: Set[str]) -> Any:
    """The request under "body" in a line of a batch file, beside what else the line says; other rows as they are.

    Args:
        place: of the row, as an error names it.
        read: the fields that count. Others may say two things, such as ``model``; the request's is kept.

    Raises:
        ConfigError: one of these stands in the request and beside it, with two values that are not null. Which of them
            was served, a log does not tell.
    """
    if not isinstance(row, Mapping):
        return row
    inner = row.get("body")
    if not isinstance(inner, Mapping) or not {"prompt", "messages", "text"} & set(inner):
        return row
    outer = {key: value for key, value in row.items() if key != "body"}
    for key, value in outer.items():
        if key in read and value is not None and inner.get(key) not in (None, value):
            problem = f"{key} {shown(value)} stands beside body, and {key} {shown(inner[key])} in it"
            raise source.wrong(f"{place}: {problem}", "Leave one of them out.")
    return {**outer, **{key: value for key, value in inner.items() if value is not None or key not in outer}}


def own_parameters(row: Mapping[str, Any], place: str, source: Origin) -> dict[str, Any]:
    """What a row says of gamma, and of SamplingParams by its names, but that the length is called max_new_tokens. null
    counts as not said.

    Raises:
        ConfigError: two values of one parameter that differ, a field that would make another text and cannot be run, or
            sampling_params that are no JSON object.
    """
    inner = row.get("sampling_params")
    inner = {} if inner is None else inner
    if not isinstance(inner, Mapping):
        problem = f"{place}: sampling_params {shown(inner)} is no JSON object of parameters by their names"
        raise source.wrong(problem, _LEAVE_OUT)
    pairs = [(name, value) for body in (row, inner) for name, value in body.items() if value is not None]
    values = dict(pairs)
    refused = {name: values.get(name) for name in REFUSED} | {name: inner.get(name) for name in OF_SGLANG}
    for name, value in refused.items():
        if value and value != HARMLESS.get(name):
            raise source.wrong(f"{place}: {name} {shown(value)} of the request cannot be run", _LEAVE_OUT)
    usual = (True, row.get("messages") is None)  # a chat's template writes its own special tokens
    for name, value in zip(FRAMING, usual, strict=True):
        if values.get(name, value) != value:
            raise source.wrong(f"{place}: {name} {shown(values[name])} of the request cannot be run", _LEAVE_OUT)
    own = _agreed(pairs, place, source)
    if isinstance(own.get("logprobs"), bool):  # of a chat: whether they are shown, which changes no text
        del own["logprobs"]
    return own


def _agreed(pairs: Iterable[tuple[str, Any]], place: str, source: Origin) -> dict[str, Any]:
    """The parameters by their names here. An engine takes one of two values; which, a log does not tell."""
    own: dict[str, tuple[str, Any]] = {}
    for name, value in pairs:
        parameter = RENAMED.get(name, name)
        if parameter not in PARAMETERS:
            continue
        before, other = own.setdefault(parameter, (name, value))
        if other != value:
            problem = f"{before} {shown(other)} and {name} {shown(value)}"
            raise source.wrong(
                f"{place}: {problem} are the same parameter with different values", "Leave one of them out."
            )
    return {parameter: value for parameter, (_, value) in own.items()}
