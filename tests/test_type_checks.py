"""What tests/type_checks.py puts around the functions of specbench refuses what jaxtyping's own wrapper refuses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jaxtyping
import pytest
import torch
from jaxtyping import Float, TypeCheckError
from torch import Tensor

from tests.type_checks import ORIGINAL, _decorated, checked

THREE, FOUR = torch.zeros(3), torch.zeros(4)


def same_length(x: Float[Tensor, " n"], y: Float[Tensor, " n"]) -> None:
    """Two arguments whose sizes must agree."""


def returned(x: Float[Tensor, " n"], out: object) -> Float[Tensor, " n"]:
    """A result whose size must be the argument's."""
    return out


def counted(n: int, *, words: Sequence[str] = ()) -> str:
    """No shapes."""
    return words[0] if words else n


def nested(x: Float[Tensor, " n"], y: Float[Tensor, " n"]) -> None:
    """What another function calls n is another number."""
    checked(same_length)(FOUR, FOUR)


@dataclass
class Record:
    x: Float[Tensor, " n"]
    y: Float[Tensor, " n"]


RECORD = _decorated(lambda fn: fn, Record)
GOOD = [
    (same_length, (THREE, THREE), {}),
    (returned, (THREE, THREE), {}),
    (counted, (1,), {"words": ["a"]}),
    (nested, (THREE, THREE), {}),
]
BAD = [
    (same_length, (THREE, FOUR), {}),
    (same_length, (THREE, THREE.double().long()), {}),
    (returned, (THREE, FOUR), {}),
    (returned, (THREE, None), {}),
    (counted, ("1",), {}),
    (counted, (1,), {"words": [1]}),
    (counted, (1,), {}),
    (nested, (THREE, FOUR), {}),
]


def wrappers(function):
    from beartype import beartype

    return checked(function), ORIGINAL(function, typechecker=beartype)


@pytest.mark.parametrize(("function", "given", "named"), GOOD)
def test_what_fits_goes_through(function, given, named):
    for wrapped in wrappers(function):
        assert wrapped(*given, **named) is function(*given, **named)


@pytest.mark.parametrize(("function", "given", "named"), BAD)
def test_what_does_not_fit_is_refused_as_jaxtyping_refuses_it(function, given, named):
    for wrapped in wrappers(function):
        with pytest.raises(TypeCheckError):
            wrapped(*given, **named)
        assert wrapped.__wrapped__ is function


def test_a_refusal_leaves_nothing_behind_and_names_the_sizes():
    wrapped = checked(same_length)
    with pytest.raises(TypeCheckError) as caught:
        wrapped(THREE, FOUR)
    assert caught.value.__notes__ == ["Sizes: {'n': 3}"]
    wrapped(FOUR, FOUR)


def test_fields_of_a_dataclass_are_arguments():
    assert RECORD(THREE, THREE).x is THREE
    with pytest.raises(TypeCheckError):
        RECORD(THREE, FOUR)


def test_the_tests_run_with_it():
    from specbench import sampling

    assert sampling.inverse_cdf.__code__.co_filename.endswith("type_checks.py")


@pytest.mark.usefixtures("unchecked")
def test_nothing_is_checked_where_a_test_says_so():
    assert jaxtyping.config.jaxtyping_disable
    checked(same_length)(THREE, FOUR)
    assert checked(counted)(1) == 1
