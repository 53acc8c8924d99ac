"""Small functions of tensors, of which an engine that compiles makes one or two kernels each.

A step has dozens of operations on a number a request. On a GPU each is a kernel, which takes a microsecond to start.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

import torch

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
Fuse = Callable[[Callable[..., Any]], Callable[..., Any]]


class _Current(threading.local):
    fuse: Fuse | None = None  # of the innermost block


_current = _Current()


@contextmanager
def fused_by(fuse: Fuse) -> Generator[None]:
    """Inside, calls of fusible functions in this thread run something else.

    Args:
        fuse: given the function at each call, it returns what runs in its place; it should remember what it made.
    """
    before, _current.fuse = _current.fuse, fuse
    try:
        yield
    finally:
        _current.fuse = before


def fusible(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Marks a function of tensors, and of numbers that shapes depend on, for :func:`fused_by`.

    It must not read values of tensors on the host.
    """

    @functools.wraps(function)
    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        if torch.compiler.is_compiling() or _current.fuse is None:
            return function(*args, **kwargs)
        return _current.fuse(function)(*args, **kwargs)

    return call
