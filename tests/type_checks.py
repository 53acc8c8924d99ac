"""The checks of types and shapes that jaxtyping's import hook puts around every function, at a third of their price.

jaxtyping looks at every argument twice, once more beside the result, and first sorts all of them by name, for functions
without a shape as well: two fifths of what many tests took. Here beartype looks at each argument and result once. What
is refused stays the same, and so does the error's class.
"""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable
from dataclasses import is_dataclass
from typing import Any

import jaxtyping
from beartype import BeartypeConf, beartype
from jaxtyping import AbstractArray, TypeCheckError
from jaxtyping._storage import pop_shape_memo, push_shape_memo

ORIGINAL = jaxtyping.jaxtyped
CHECKED = BeartypeConf(violation_type=TypeCheckError)


def check_once() -> None:
    """From now on modules that jaxtyping's hook imports are checked by ``checked``."""
    jaxtyping.jaxtyped = lambda *, typechecker: functools.partial(_decorated, typechecker)


def _decorated(typechecker: Callable, given: Any) -> Any:
    """A function or class as the hook finds it: a function before all of its other decorators, a class after them."""
    if isinstance(given, type):
        made = vars(given).get("__init__") if is_dataclass(given) else None
        if made is not None and not hasattr(made, "__wrapped__"):  # written by hand: it is checked already
            given.__init__ = checked(made)
        return given
    if inspect.isgeneratorfunction(given) or inspect.iscoroutinefunction(given):  # beartype knows what they return
        return ORIGINAL(given, typechecker=typechecker)
    return checked(given)


def checked(function: Callable) -> Callable:
    """The function, whose arguments and result are held against its annotations, sizes of one name against each other.

    Raises (the result does):
        TypeCheckError: what does not fit.
    """
    hints = {name: _hint(each, function.__globals__) for name, each in function.__annotations__.items()}
    inner = types.FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    inner.__kwdefaults__, inner.__annotations__ = function.__kwdefaults__, hints
    inner.__module__, inner.__qualname__ = function.__module__, function.__qualname__
    tested = beartype(conf=CHECKED)(inner)
    if not any(_has_shape(hint) for hint in hints.values()):

        @functools.wraps(function)
        def plain(*args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            return (function if jaxtyping.config.jaxtyping_disable else tested)(*args, **kwargs)

        return plain

    @functools.wraps(function)
    def shaped(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        if jaxtyping.config.jaxtyping_disable:
            return function(*args, **kwargs)
        sizes, *_ = push_shape_memo({})
        try:
            return tested(*args, **kwargs)
        except TypeCheckError as error:
            if not hasattr(error, "__notes__"):  # the innermost function is the one that was called wrongly
                error.add_note(f"Sizes: {sizes}")
            raise
        finally:
            pop_shape_memo()

    return shaped


def _hint(annotation: Any, names: dict[str, Any]) -> Any:
    """What an annotation means; Any if it names what is not imported yet, or for type checkers alone."""
    holder = types.SimpleNamespace(__annotations__={"it": annotation})
    try:
        return typing.get_type_hints(holder, names, include_extras=True)["it"]
    except Exception:
        return Any


def _has_shape(hint: Any) -> bool:
    if isinstance(hint, type) and issubclass(hint, AbstractArray):
        return True
    return any(_has_shape(part) for part in typing.get_args(hint))
