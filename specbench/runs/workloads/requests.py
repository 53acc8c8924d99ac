"""What a row says as a request to an engine: sampling parameters, draft length and length of its own.

Read are the fields of OpenAI's completions and chat completions as vLLM and SGLang extend them; lines of OpenAI's batch
files, which hold the request under "body"; and SGLang's own requests, with its parameters under "sampling_params".
What a parameter means, and its range, specbench/core/sampling_params.py knows.
"""

import dataclasses
from collections.abc import Mapping, Set
from typing import Any

from specbench.core.checks import nearest
from specbench.core.machine.files import shown
from specbench.core.sampling_params import SamplingParams
from specbench.runs.workloads.sources import WorkloadRow

LENGTHS = ("max_new_tokens", "max_tokens", "max_completion_tokens", "n_predict")  # names of one thing
NO_LENGTH = ("n_predict", -1)  # as llama.cpp's own requests say it
RENAMED = dict.fromkeys(LENGTHS, "max_new_tokens")
PARAMETERS = {RENAMED.get(field.name, field.name) for field in dataclasses.fields(SamplingParams)} - {"processors"} | {
    "gamma"
}
# Other engines' names of what is known here by another one. These are also columns of data sets, and stand in
# sampling_params alone.
OF_SGLANG = ("json_schema", "regex", "ebnf")
OF_CHATS = ("documents",)  # a column of data sets too, which stands beside messages
REFUSED = (
    *("tools", "functions", "suffix", "echo", "chat_template", "chat_template_kwargs", "typical_p", "best_of"),
    *("use_beam_search", "stop_regex", "structural_tag", "custom_logit_processor", "reasoning_effort"),
    *("continue_final_message", "prompt_embeds", "lora_path", "min_new_tokens", "thinking_budget"),
    *("logits_processors", "image_data", "audio_data", "video_data"),
    *("repeat_penalty", "mirostat", "dynatemp_range", "xtc_probability", "dry_multiplier", "top_n_sigma"),  # llama.cpp
    *("guided_json", "guided_regex", "guided_grammar", "guided_choice"),  # structured_outputs here
    *("response_format", "grammar"),
)
HARMLESS = {"best_of": 1, "typical_p": 1, "repeat_penalty": 1, "top_n_sigma": -1, "response_format": {"type": "text"}}
FRAMING = ("add_generation_prompt", "add_special_tokens")  # what stands around a prompt
FIELDS = {*PARAMETERS, *RENAMED, *REFUSED, *FRAMING, "sampling_params"}
_WITHOUT_EFFECT = {"logprobs", "prompt_logprobs", "gamma"}  # on a text; data sets have columns of names like these
MISSPELLED = tuple(sorted((PARAMETERS | RENAMED.keys()) - _WITHOUT_EFFECT))
NEAR = 0.9  # of 1 that a misspelled name is like its parameter; n_tokens, of data sets, is less like min_tokens
_LEAVE_OUT = "Leave it out of the line, or let no line have parameters of its own: workload.parameters=false."


def unwrapped(row: WorkloadRow, read: Set[str]) -> Any:
    """The request under "body" in a line of a batch file, beside what else the line says; other values as they are.

    Args:
        read: the fields that count. Others may say two things, such as ``model``; the request's is kept.

    Raises:
        ConfigError: one of these stands in the request and beside it, with two values that are not null. Which of them
            was served, a log does not tell.
    """
    if not isinstance(row.value, Mapping):
        return row.value
    inner = row.value.get("body")
    if not isinstance(inner, Mapping) or not {"prompt", "messages", "text"} & set(inner):
        return row.value
    outer = {key: value for key, value in row.value.items() if key != "body"}
    for key, value in outer.items():
        if key in read and value is not None and inner.get(key) not in (None, value):
            problem = f"{key} {shown(value)} stands beside body, and {key} {shown(inner[key])} in it"
            raise row.wrong(problem, "Leave one of them out.")
    return {**outer, **{key: value for key, value in inner.items() if value is not None or key not in outer}}


def own_parameters(row: WorkloadRow) -> dict[str, Any]:
    """What a row says of gamma, and of SamplingParams by its names, but that the length is called max_new_tokens. null
    counts as not said.

    Raises:
        ConfigError: two values of one parameter that differ, a field that would make another text and cannot be run, a
            misspelled parameter, or sampling_params that are no JSON object.
    """
    inner = row.value.get("sampling_params")
    inner = {} if inner is None else inner
    if not isinstance(inner, Mapping):
        problem = f"sampling_params {shown(inner)} is no JSON object of parameters by their names"
        raise row.wrong(problem, _LEAVE_OUT)
    pairs = [pair for body in (row.value, inner) for pair in body.items() if pair[1] is not None and pair != NO_LENGTH]
    values = dict(pairs)
    names_refused = (*REFUSED, *(OF_CHATS if row.value.get("messages") is not None else ()))
    refused = {name: values.get(name) for name in names_refused} | {name: inner.get(name) for name in OF_SGLANG}
    for name, value in refused.items():
        if value and value != HARMLESS.get(name):
            raise row.wrong(f"{name} {shown(value)} of the request cannot be run", _LEAVE_OUT)
    for name in sorted(values.keys() - FIELDS):
        if near := nearest(name, MISSPELLED, NEAR):
            raise row.wrong(f"{name} is no parameter of a request", f"Did you mean {near}? {_LEAVE_OUT}")
    usual = (True, row.value.get("messages") is None)  # a chat's template writes its own special tokens
    for name, value in zip(FRAMING, usual, strict=True):
        if values.get(name, value) != value:
            raise row.wrong(f"{name} {shown(values[name])} of the request cannot be run", _LEAVE_OUT)
    names: dict[str, str] = {}
    parameters: dict[str, Any] = {}
    for name, value in pairs:
        parameter = RENAMED.get(name, name)
        if parameter not in PARAMETERS:
            continue
        other = parameters.setdefault(parameter, value)
        if other is not value and other != value:  # an engine takes one of them; which, a log does not tell
            problem = f"{names[parameter]} {shown(other)} and {name} {shown(value)}"
            raise row.wrong(f"{problem} are the same parameter with different values", "Leave one of them out.")
        names.setdefault(parameter, name)
    if isinstance(parameters.get("logprobs"), bool):  # of a chat: whether they are shown, which changes no text
        del parameters["logprobs"]
    return parameters
