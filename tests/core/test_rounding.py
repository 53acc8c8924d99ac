"""Numbers as text."""

import math

import pytest

from specbench.core import rounding
from specbench.core.rounding import about, least, most


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


def test_bounds_are_rounded_to_their_safe_side():
    assert (most(7.81e-7), least(7.89e-7), about(7.84e-7)) == ("7.9e-07", "7.8e-07", "7.8e-07")
    assert (most(0.0999), most(1.0), most(0.0), most(None)) == ("0.1", "1", "0", "-")
    for value in (10**-e * m for e in range(17) for m in (1.0, 1.01, 2.345, 9.99)):
        assert float(least(value)) <= value * (1 + 1e-9)
        assert value <= float(most(value)) * (1 + 1e-9)
        assert math.isclose(float(about(value)), value, rel_tol=0.06)
