"""Numbers as text."""

import math

import pytest

from specbench.core import rounding


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((1.1, 0.06, 18.67), "1.10 (uncertain by a factor of 18)"),  # of two prompts
        ((0.83, 0.0041, 1.8), "0.83 (uncertain by a factor of 200)"),
        ((1.1, 0.5, 2.42), "1.10 (uncertain by a factor of 2.2)"),
        ((1.1, 0.6, 2.0), "1.10 [0.60, 2.00]"),
        ((1.1, None, None), "1.10"),
        ((1.1, math.nan, math.nan), "1.10"),
        ((1.1, 1.1, 1.1), "1.10"),
    ],
)
def test_a_speedup_of_which_its_interval_says_nothing_is_told_in_words(values, expected):
    assert rounding.speedup(*values) == expected
