"""What of JSON is a number, a count, a name or a list of them: servers and files may send anything in its place."""

import math
from collections.abc import Callable
from typing import Any

import pytest

from specbench.sources import values

HUGE = 10**400  # more than a float holds


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
