"""What servers, files and sources of a user's own may send in the place of a number, a name, a text or a list."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from specbench.core.errors import ArgumentError
from specbench.core.sampling_params import SamplingParams
from specbench.sources import Mode, TextCompletion, TextRequest, values

HUGE = 10**400  # more than a float holds
REQUEST = TextRequest(prompt_id="a", prompt="b", sampling=SamplingParams(), seed=0, max_new_tokens=2)


@pytest.mark.parametrize(
    ("check", "right", "wrong"),
    [
        (values.is_number, [0, -1.5], [math.nan, math.inf, HUGE, True, "0", None]),
        (values.is_count, [0, 3], [-1, 1.5, math.nan, HUGE, True, "1"]),
        (values.is_name, ["", "a"], ["\ud800", 3, None]),
        (values.is_token_ids, [[], [0, 2**32 - 1]], ["12", {}, [-1], [1.5], [True], [2**32]]),
        (values.is_logprobs, [[], [-0.5, 0, -math.inf]], [None, [math.nan], [math.inf], [HUGE], [True], ["a"]]),
        (values.is_counters, [{}, {"a": 0.5}], [[3], {"a": -1}, {"a": math.nan}, {"a": HUGE}, {"a": True}, {"a": "x"}]),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_values_of_json(check: Callable[[Any], bool], right: list[Any], wrong: list[Any]) -> None:
    assert [value for value in right if not check(value)] == []
    assert [value for value in wrong if check(value)] == []


@pytest.mark.usefixtures("unchecked")
def test_token_ids_may_be_any_sequence_of_numbers():
    """A list is never equal to a tuple of the same tokens, and an array is neither true nor false."""
    fields: dict[str, Any] = {"request": REQUEST, "mode": Mode.PLAIN, "text": ""}
    expected = TextCompletion(**fields, token_ids=(1, 2), logprobs=(-1.0, -2.0))
    for ids in ([1, 2], np.array([1, 2]), torch.tensor([1, 2])):
        assert TextCompletion(**fields, token_ids=ids, logprobs=np.array([-1.0, -2.0])) == expected


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("field", "says"),
    [
        ({"text": None}, "text: None; give a str"),
        *(({"token_ids": ids}, "token_ids: .*; give a tuple of numbers") for ids in ([1.5], ["a"], 3)),
        ({"token_ids": (-1, 2)}, r"token_ids: \(-1, 2\); give ids from 0"),
        (
            {"token_ids": [1, 2], "logprobs": [0, 0, 0]},
            "logprobs: the text of prompt 'a' has 3 logprobs for 2 token_ids",
        ),
        ({"logprobs": [-1, 12]}, "logprobs: the text of prompt 'a' has the logprob 12.0; give natural logarithms"),
        ({"logprobs": [math.nan]}, "logprobs: the text of prompt 'a' has the logprob nan; "),
        ({"counters": {"drafted": "many"}}, "counters: {'drafted': 'many'}; give numbers from 0"),
        ({"counters": {"steps": -1}}, "counters: {'steps': -1}; give numbers from 0"),
    ],
)
def test_a_field_of_a_text_that_holds_something_else_is_named(field, says):
    """When the source makes the text, and not when all texts are there."""
    with pytest.raises(ArgumentError, match=rf"^TextCompletion\.{says}"):
        TextCompletion(**{"request": REQUEST, "mode": Mode.PLAIN, "text": "", **field})
