"""Triton's interpreter, where there is no GPU: spared what it does over and over.

It replaces the functions of triton.language by its own before a launch, and again before every device function that the
kernel calls, where nothing is left to replace: a third of the time of an interpreted test. Here that search is made
only where something is not replaced yet. What kernels compute is not touched.

And watched: which memory a kernel reads and writes, where it would go unseen.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter


def replace_once_a_launch() -> None:
    """Does nothing where Triton has changed what this relies on: tests are slower then, and as right."""
    replace: Callable[[Any], Any] | None = getattr(interpreter, "_patch_lang", None)
    scope: Callable[[], Any] | None = getattr(interpreter, "_LangPatchScope", None)
    if replace is None or scope is None:
        return

    def replace_if_needed(fn: Any) -> Any:
        # The end of a launch takes back what was replaced, so that the next one begins here with functions of Triton.
        if any(tl.core.is_builtin(module.load) for module in (tl, tl.core)):
            return replace(fn)
        return scope()

    interpreter._patch_lang = replace_if_needed


def leave_out_what_nobody_reads() -> None:
    """Spares the interpreter its checks for overflow, whose results it drops unless its option ``debug`` is on."""
    options = interpreter.interpreter_builder.options
    if not options.debug:
        interpreter.interpreter_builder.options = dataclasses.replace(options, sanitize_overflow=False)


def remember_dtypes() -> None:
    """Each type's dtype of NumPy is looked up once: Triton makes a table of all of them for every look."""
    look_up: Callable[[Any], np.dtype] | None = getattr(interpreter, "_get_np_dtype", None)
    if look_up is None:
        return
    dtypes: dict[str, np.dtype] = {}

    def dtype_of(kind: Any) -> np.dtype:
        name = kind.scalar.name  # a block's is that of one of its elements
        if name not in dtypes:
            dtypes[name] = look_up(kind)
        return dtypes[name]

    interpreter._get_np_dtype = dtype_of


def remember_blocks() -> None:
    """Blocks of one shape and kind of element share their type: Triton makes it anew for every step of a program."""
    made: dict[tuple[str, tuple[int, ...]], tl.block_type] = {}

    def block_of(element: Any, shape: Any) -> tl.block_type:
        key = element.name, (*shape,)
        if key not in made:
            made[key] = tl.block_type(element, shape)
        return made[key]

    tl.block_type.with_element_ty = lambda self, element: block_of(element, self.shape)
    interpreter.InterpreterBuilder.get_block_ty = lambda _, element, shape: block_of(element, shape)


@contextmanager
def accesses(load: Callable[..., Any], store: Callable[..., Any], atomic: Callable[..., Any]) -> Iterator[None]:
    """Replaces the interpreter's masked load, masked store and read-modify-write atomic by these.

    Another atomic, which no kernel has, is an error, because its races would go unnoticed.
    """

    def refused(*_: Any) -> None:
        raise NotImplementedError("atomic_cas: who looks after accesses to memory does not know it yet")

    builder = interpreter.InterpreterBuilder
    with (
        mock.patch.object(builder, "create_masked_load", load),
        mock.patch.object(builder, "create_masked_store", store),
        mock.patch.object(builder, "create_atomic_rmw", atomic),
        mock.patch.object(builder, "create_atomic_cas", refused),
    ):
        yield


@contextmanager
def before_accesses(look: Callable[[Any, Any, Any, str, Any], None]) -> Iterator[None]:
    """Calls ``look(builder, pointers, mask, kind, sem)`` before each access; ``sem`` is an atomic's memory order."""
    builder = interpreter.InterpreterBuilder
    load, store, atomic = builder.create_masked_load, builder.create_masked_store, builder.create_atomic_rmw

    def watched_load(self: Any, pointers: Any, mask: Any, *rest: Any) -> Any:
        look(self, pointers, mask, "reads", None)
        return load(self, pointers, mask, *rest)

    def watched_store(self: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        look(self, pointers, mask, "writes", None)
        return store(self, pointers, value, mask, *rest)

    def watched_atomic(self: Any, operation: Any, pointers: Any, value: Any, mask: Any, sem: Any, *rest: Any) -> Any:
        look(self, pointers, mask, "has an atomic", sem)
        return atomic(self, operation, pointers, value, mask, sem, *rest)

    with accesses(watched_load, watched_store, watched_atomic):
        yield


@contextmanager
def only_within(tensors: Sequence[torch.Tensor]) -> Iterator[None]:
    """Raises IndexError where an interpreted kernel reads or writes memory that belongs to none of these tensors.

    A read whose value is not used changes no result, and on a GPU can still end in an illegal address.
    """
    rows = [row for tensor in tensors for row in (tensor if tensor.dim() == 2 else [tensor]) if len(row)]
    first = np.array(sorted(row.data_ptr() for row in rows), dtype=np.uint64)
    sizes = {row.data_ptr(): len(row) * row.element_size() for row in rows}
    end = first + np.array([sizes[int(pointer)] for pointer in first], dtype=np.uint64)

    def check(pointers: Any, mask: Any) -> None:
        used = np.atleast_1d(pointers.data)[np.atleast_1d(mask.data).astype(bool)]
        place = np.searchsorted(first, used, side="right").astype(np.int64) - 1
        if ((place < 0) | (used >= end[place])).any():
            raise IndexError("a kernel went outside of its tensors")

    with before_accesses(lambda _, pointers, mask, kind, sem: check(pointers, mask)):
        yield


def watched(run: Callable[..., None]) -> Callable[..., None]:
    """A module's ``run`` that holds each launch to the memory of its own arguments."""

    def inside(kernel: object, programs: int, *args: object, **options: object) -> None:
        with only_within(list(_tensors(args))):
            run(kernel, programs, *args, **options)

    return inside


def _tensors(values: object) -> Iterator[torch.Tensor]:
    if isinstance(values, torch.Tensor):
        yield values if values.dim() == 2 else values.view(-1)
    elif isinstance(values, tuple):
        for value in values:
            yield from _tensors(value)
