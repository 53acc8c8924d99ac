"""Rows that are requests, as engines take them: which parameters a prompt has of its own, and what is refused."""

from __future__ import annotations

import pytest

from tests.runs.test_workloads import message, only, refusal

REQUESTS = [
    ({"prompt": "p", "temperature": 0, "max_tokens": 5, "model": "m", "stream": True}, {"temperature": 0}, 5),
    ({"messages": [message("user", "p")], "max_completion_tokens": 6, "stop": None, "top_p": 0.5}, {"top_p": 0.5}, 6),
    ({"custom_id": "r", "body": {"prompt": "p", "frequency_penalty": 1.5}}, {"frequency_penalty": 1.5}, None),
    ({"text": "p", "sampling_params": {"max_new_tokens": 4, "min_tokens": 2}}, {"min_tokens": 2}, 4),
    ({"prompt": "p", "logprobs": True, "top_logprobs": 3}, {}, None),
    ({"prompt": "p", "response_format": {"type": "text"}}, {}, None),
    ({"prompt": "p", "n_predict": -1}, {}, None),
    ({"prompt": "p", "min_tokens": 2, "sampling_params": {"min_tokens": 2}}, {"min_tokens": 2}, None),
    ({"text": "p", "regex": "a", "ebnf": "of the set"}, {}, None),
    ({"prompt": "p", "n_predict": 7, "repeat_penalty": 1, "mirostat": 0, "documents": ["d"]}, {}, 7),
]


@pytest.mark.parametrize(("line", "sampling", "length"), REQUESTS)
def test_requests_of_engines_are_prompts_with_parameters_of_their_own(line, sampling, length, tmp_path):
    prompt = only(tmp_path, line)
    assert (prompt.text, prompt.sampling, prompt.max_new_tokens) == ("p", sampling, length)
    assert prompt.name == line.get("custom_id", "line-1")
    ignored = only(tmp_path, line, parameters=False)
    assert (ignored.sampling, ignored.max_new_tokens, ignored.seed) == ({}, None, None)


def test_a_request_and_what_stands_beside_it_may_not_contradict_each_other(tmp_path):
    """What stood beside it gave way in silence. null says nothing, on either side."""
    request = {"prompt": "p", "temperature": 0, "top_p": 0.5, "seed": None, "model": "a", "kind": "b"}
    beside = {"temperature": 0, "seed": 7, "gamma": 2, "top_p": None, "model": "c", "kind": "d"}
    prompt = only(tmp_path, {**beside, "body": request})
    assert (prompt.text, prompt.sampling, prompt.seed, prompt.gamma) == ("p", {"temperature": 0, "top_p": 0.5}, 7, 2)
    hot, other = {"body": request, "temperature": 1}, {"body": request, "prompt": "q"}
    problem = "line 1: temperature 1 stands beside body, and temperature 0 in it. Leave one of them out."
    assert problem in refusal(tmp_path, hot)
    assert "prompt 'q' stands beside body, and prompt 'p' in it" in refusal(tmp_path, other)
    assert only(tmp_path, hot, parameters=False).text == "p"
    columns = {"category": "kind"}
    assert "kind 'd' stands beside body" in refusal(tmp_path, {**beside, "body": request}, columns=columns)


CHAT = [{"role": "user", "content": "p"}]


def test_requests_that_cannot_be_run_are_refused(tmp_path):
    for line, words in (
        ({"max_tokens": 3, "max_new_tokens": 4}, "max_tokens 3 and max_new_tokens 4 are the same parameter"),
        ({"sampling_params": {"min_new_tokens": 4}}, "min_new_tokens 4 of the request cannot be run"),
        ({"thinking_budget": 4}, "thinking_budget 4 of the request cannot be run"),
        ({"temprature": 0}, "temprature is no parameter of a request. Did you mean temperature?"),
        ({"sampling_params": {"max_token": 8}}, "max_token is no parameter of a request. Did you mean max_tokens?"),
        ({"sampling_params": {"regex": "a"}}, "regex 'a' of the request cannot be run"),
        ({"temperature": 0, "sampling_params": {"temperature": 1}}, "temperature 0 and temperature 1 are the same"),
        ({"guided_regex": "a"}, "guided_regex 'a' of the request cannot be run"),
        ({"response_format": {"type": "json_object"}}, "response_format {'type': 'json_object'} of the request cannot"),
        ({"max_tokens": 0}, "max_tokens 0 is no whole number from 1"),
        ({"seed": -1}, "seed -1 is no whole number from 0"),
        ({"tools": [{}]}, "tools [{}] of the request cannot be run"),
        ({"use_beam_search": True}, "use_beam_search True of the request cannot be run"),
        ({"sampling_params": {"stop_regex": "a+"}}, "stop_regex 'a+' of the request cannot be run"),
        ({"reasoning_effort": "low"}, "reasoning_effort 'low' of the request cannot be run"),
        ({"lora_path": "mine"}, "lora_path 'mine' of the request cannot be run"),
        ({"add_special_tokens": False}, "add_special_tokens False of the request cannot be run"),
        ({"prompt": None, "messages": CHAT, "documents": ["d"]}, "documents ['d'] of the request cannot be run"),
        ({"grammar": "root ::= a"}, "grammar 'root ::= a' of the request cannot be run"),
        ({"prompt": None, "messages": CHAT, "add_special_tokens": True}, "add_special_tokens True of the request"),
        ({"prompt": None, "messages": CHAT, "add_generation_prompt": False}, "add_generation_prompt False of the"),
        ({"repeat_penalty": 1.5}, "repeat_penalty 1.5 of the request cannot be run"),
        ({"image_data": "a.png"}, "image_data 'a.png' of the request cannot be run"),
        ({"sampling_params": [{"temperature": 0}]}, "sampling_params [{'temperature': 0}] is no JSON object"),
        ({"sampling_params": '{"temperature": 0}'}, "is no JSON object of parameters by their names"),
    ):
        problem = refusal(tmp_path, {"prompt": "p"}, {"prompt": "q", **line})
        assert problem.startswith(f"workload.path={tmp_path}/w.jsonl: line 2: ")
        assert words in problem


def test_what_stands_around_a_prompt_may_be_said_if_it_is_the_usual(tmp_path):
    usual = {"prompt": "p", "messages": None, "add_special_tokens": True, "add_generation_prompt": True}
    assert only(tmp_path, usual).text == "p"
    chat = {"messages": CHAT, "add_special_tokens": False, "add_generation_prompt": None}
    assert only(tmp_path, chat).text == "p"
    assert only(tmp_path, {"prompt": "p", "add_special_tokens": False}, parameters=False).text == "p"
