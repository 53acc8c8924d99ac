"""Races in interpreted launches: two programs go to the same memory, and nothing orders them.

Two accesses of an element, of which one writes and one is no atomic, have to be ordered by the programs: the first is
followed by an atomic with release, and the second comes after an atomic with acquire that met what that one left. If
they are not, it is luck who is first. A race shows where it does no harm too, so that the interpreter's own order finds
most of them; not those of programs that meet one another's atomics in this order and not in another. An atomic that
lacks its release or acquire shows likewise.

Each program has a clock for every program, which says how far it knows that one to have come; an atomic with release
leaves these, and one with acquire takes them over (Flanagan and Freund, "FastTrack", PLDI 2009). What the threads of a
program owe one another, such as barriers, is not looked at, and neither is the scope of an atomic.
"""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
from triton.runtime import interpreter

from tests.interpreted.interpreter import before_accesses

PAGE = 4096  # bytes of memory that are looked after together
KINDS = ("reads", "writes", "has an atomic")  # of accesses
AGAINST = {"reads": KINDS[1:], "writes": KINDS, "has an atomic": KINDS[:2]}


class Race(Exception):
    """Two programs of a launch went to the same memory, and nothing orders them."""


class Clocks:
    """The programs of a launch, and who was where in memory when."""

    def __init__(self, programs: int) -> None:
        self._known = np.eye(programs, dtype=np.int32)  # [p, q]: how far p knows q to have come; each begins at 1
        self._left: dict[int, np.ndarray] = {}  # [q], at the address of an atomic
        # By kind, [q, byte]: when q last went there, by its own clock; an element counts as its first byte.
        self._pages: dict[int, dict[str, np.ndarray]] = defaultdict(
            lambda: {kind: np.zeros((programs, PAGE), np.int32) for kind in KINDS}
        )

    def went(self, program: int, pointers: np.ndarray, mask: np.ndarray, kind: str) -> None:
        """Notes an access. Raises Race if it conflicts with one of another program."""
        used = np.atleast_1d(pointers)[np.atleast_1d(mask).astype(bool)].astype(np.int64)
        clock = self._known[program]
        for page in np.unique(used // PAGE):
            times, place = self._pages[page], used[used // PAGE == page] % PAGE
            for other in AGAINST[kind]:
                late = (times[other][:, place] > clock[:, None]).any(axis=1)
                if late.any():
                    who = f"program {program} {kind}, and program {late.argmax()} {other}"
                    raise Race(f"{who} in the same place: nothing says which comes first")
            times[kind][program, place] = clock[program]

    def met(self, program: int, pointers: np.ndarray, mask: np.ndarray, acquires: bool, releases: bool) -> None:
        """Notes what an atomic makes known."""
        for at in np.atleast_1d(pointers)[np.atleast_1d(mask).astype(bool)].tolist():
            left = self._left.setdefault(at, np.zeros_like(self._known[program]))
            if acquires:
                np.maximum(self._known[program], left, out=self._known[program])
            if releases:
                np.maximum(left, self._known[program], out=left)
        self._known[program, program] += releases


@contextmanager
def no_races() -> Iterator[None]:
    """Raises Race, of which the interpreter may make an InterpreterError, where a launch in this context has one."""
    builder = interpreter.InterpreterBuilder
    begin, clocks = builder.set_grid_dim, []

    def watched_begin(self: Any, *grid: int) -> None:
        begin(self, *grid)
        clocks[:] = [Clocks(int(np.prod(grid)))]

    def look(self: Any, pointers: Any, mask: Any, kind: str, sem: Any) -> None:
        program = int(np.ravel_multi_index(self.grid_idx, self.grid_dim))
        clocks[0].went(program, pointers.data, mask.data, kind)
        if sem is not None:
            acquires, releases = (sem.name in (name, "ACQUIRE_RELEASE") for name in ("ACQUIRE", "RELEASE"))
            clocks[0].met(program, pointers.data, mask.data, acquires, releases)

    with mock.patch.object(builder, "set_grid_dim", watched_begin), before_accesses(look):
        yield
