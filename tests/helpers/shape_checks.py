"""Shapes and dtypes are checked in the first calls of a function in each test, and then in every sixteenth.

Checks cost 0.1 ms a call, most of the time of tests that make many small ones. A function's checks are made when it is
first called: most are never called in a process, and to make the checks of all took a third of the imports' time.
"""

import contextlib
import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import jaxtyping

FIRST, STRIDE = 8, 16
_jaxtyped = jaxtyping.jaxtyped


class _Epoch:
    number = 0


@contextlib.contextmanager
def without_shape_checks() -> Iterator[None]:
    """No checks at all."""
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)


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
    if inspect.isfunction(decorated):
        return _spared(decorated, typechecker)
    init = vars(decorated).get("__init__")
    if dataclasses.is_dataclass(decorated) and inspect.isfunction(init) and not hasattr(init, "__wrapped__"):
        decorated.__init__ = _spared(init, typechecker)  # made by @dataclass: a written one has its checks already
    return decorated


def _spared(plain: Callable, typechecker: Any) -> Callable:
    epoch, calls, checked = -1, 0, None

    @functools.wraps(plain)
    def either(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        nonlocal epoch, calls, checked
        if jaxtyping.config.jaxtyping_disable:
            return plain(*args, **kwargs)
        if epoch != _Epoch.number:
            epoch, calls = _Epoch.number, 0
        calls += 1
        if calls > FIRST and calls % STRIDE:
            return plain(*args, **kwargs)
        checked = checked or _jaxtyped(plain, typechecker=typechecker)
        return checked(*args, **kwargs)

    return either
