"""Shapes and dtypes are checked in the first calls of a function in each test, and then in every sixteenth.

Checks cost 0.1 ms a call, most of the time of tests that make many small ones.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import jaxtyping

FIRST, STRIDE = 8, 16
_jaxtyped = jaxtyping.jaxtyped


class _Epoch:
    number = 0


def new_test() -> None:
    """All functions are checked from their first call again."""
    _Epoch.number += 1


def check_sparingly() -> None:
    """For modules that jaxtyping's hook has not imported yet."""
    jaxtyping.jaxtyped = _sparing


def _sparing(*arguments: Any, typechecker: Any) -> Any:
    if not arguments:
        return functools.partial(_sparing, typechecker=typechecker)
    decorated = arguments[0]
    if inspect.isclass(decorated):
        plain = decorated.__init__
        checked = _jaxtyped(decorated, typechecker=typechecker).__init__
        if checked is not plain:
            decorated.__init__ = _spared(plain, checked)
        return decorated
    checked = _jaxtyped(decorated, typechecker=typechecker)
    return _spared(decorated, checked) if inspect.isfunction(decorated) else checked


def _spared(plain: Callable, checked: Callable) -> Callable:
    epoch, calls = -1, 0

    @functools.wraps(plain)
    def either(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        nonlocal epoch, calls
        if jaxtyping.config.jaxtyping_disable:
            return plain(*args, **kwargs)
        if epoch != _Epoch.number:
            epoch, calls = _Epoch.number, 0
        calls += 1
        return (plain if calls > FIRST and calls % STRIDE else checked)(*args, **kwargs)

    return either
