"""Launches under Triton's interpreter whose programs take turns, in any order that a GPU may run them in.

The interpreter runs the programs of a grid one after another. A GPU runs them at the same time, and all that holds is
that programs of a lower index start no later. So a program that counts itself too early, or publishes too late, is
right in every interpreted test. Here each program has a thread of its own, of which one runs at a time. Before every
access to memory a program stops, and a schedule (schedules.py) chooses which one goes on. Only so many have begun and
not ended (are *resident*); where one ends, the next in the order of indices begins.

What no schedule can show: each access, of all threads of a program, happens at once and is seen by all from then on. So
nothing is found that needs threads of one program to run apart (a missing barrier), memory that the compiler or the
hardware writes in another order than the program says (a missing release or acquire, which races.py looks for), or a
stale cache. Neither are two launches ever under way together.
"""

import inspect
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import Any, Protocol
from unittest import mock

import numpy as np
from triton.runtime import interpreter

from tests.interpreted.interpreter import accesses

Place = tuple[int, int, int]
_LOAD = interpreter.InterpreterBuilder.create_masked_load  # which no test watches


class Stuck(Exception):
    """All resident programs wait for a value that none of them will write."""


class _Stopped(BaseException):
    """Ends the thread of a program whose launch has failed; no Exception, which the interpreter would wrap."""


class Program:
    """A program of a grid, in a thread that runs only during go_on()."""

    def __init__(self, index: int, place: Place, body: Callable[[], None]) -> None:
        self.index, self.place = index, place
        self.accesses = 0  # how many it has made
        self.over = False
        self.failure: BaseException | None = None
        self.before_atomic, self.after_atomic = False, False  # the latter if that one changed something
        self.asked: bytes | None = None  # of its last access if that changed nothing: where it was, and what it found
        self.waits_since: int | None = None  # how much had been written when it last asked the same in vain
        self._body, self._given_up = body, False
        self._turn, self._back = threading.Lock(), threading.Lock()
        self._turn.acquire()
        self._back.acquire()
        # What NumPy and others keep by thread is as in the thread that launches.
        self._thread = threading.Thread(target=copy_context().run, args=(self._run,), daemon=True)

    def go_on(self) -> None:
        """Runs up to before the next access to memory, or to the end."""
        if self._thread.ident is None:
            self._thread.start()
        else:
            self._turn.release()
        self._back.acquire()
        if self.over:
            self._thread.join()

    def stop(self, before_atomic: bool) -> None:
        """Before an access, in the program's thread: hands back to who called go_on()."""
        self.before_atomic = before_atomic
        self._back.release()
        self._turn.acquire()
        if self._given_up:
            raise _Stopped
        self.before_atomic = self.after_atomic = False
        self.accesses += 1

    def give_up(self) -> None:
        """Ends the thread where it stands."""
        self._given_up = True
        if self._thread.ident is not None and not self.over:
            self.go_on()

    def _run(self) -> None:
        try:
            self._body()
        except BaseException as failure:
            self.failure = failure
        self.over = True
        self._back.release()


class Schedule(Protocol):
    """Which program goes on."""

    def choose(self, ready: Sequence[Program]) -> Program:
        """One of the resident programs that do not wait, in the order of their indices, at least one."""
        ...


@dataclass
class Launch:
    """A launch that takes turns."""

    schedule: Schedule
    resident: int
    programs: list[Program] = field(default_factory=list)
    running: Program | None = None
    writes: int = 0

    def run(self, builder: Any) -> None:
        """Runs all programs to their ends; raises what one of them raises, or Stuck."""
        begun: list[Program] = []
        rest = iter(self.programs)
        try:
            while True:
                begun = [program for program in begun if not program.over]
                while len(begun) < self.resident and (following := next(rest, None)) is not None:
                    begun.append(following)
                if not begun:
                    return
                ready = [
                    program for program in begun if program.waits_since is None or program.waits_since < self.writes
                ]
                if not ready:
                    waiting = [program.index for program in begun]
                    raise Stuck(f"programs {waiting} wait, and no other program can end that")
                program = self.running = self.schedule.choose(ready)
                builder.grid_idx = program.place
                program.go_on()
                if program.failure is not None:
                    raise program.failure
        finally:
            for unfinished in begun:
                unfinished.give_up()

    def access(self, make: Callable[[], Any], writes: bool = False) -> Any:
        """Makes a load or a store of the running program, when that is to go on."""
        program = self.running
        program.stop(before_atomic=False)
        program.asked = program.waits_since = None
        self.writes += writes
        return make()

    def atomic(self, make: Callable[[], Any], look: Callable[[], Any], pointers: Any) -> Any:
        """Makes an atomic of the running program, when that is to go on; ``look`` reads what it writes to.

        A program that asks the same of the same memory twice, and finds the same, waits until something is written.
        """
        program = self.running
        program.stop(before_atomic=True)
        before, result, after = look().data, make(), look().data
        program.after_atomic = not np.array_equal(before, after)
        self.writes += program.after_atomic
        query = None if program.after_atomic else pointers.data.tobytes() + before.tobytes()
        program.waits_since = self.writes if query is not None and query == program.asked else None
        program.asked = query
        return result


@contextmanager
def scheduled(schedule: Schedule, resident: int) -> Iterator[list[Launch]]:
    """Launches in this context take turns, ``resident`` programs at a time; yields them, the latest last."""
    builder = interpreter.InterpreterBuilder
    load, store, rmw = builder.create_masked_load, builder.create_masked_store, builder.create_atomic_rmw
    launches: list[Launch] = []

    def scheduled_load(self: Any, *args: Any) -> Any:
        return launches[-1].access(lambda: load(self, *args))

    def scheduled_store(self: Any, *args: Any) -> Any:
        return launches[-1].access(lambda: store(self, *args), writes=True)

    def scheduled_rmw(self: Any, operation: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        def look() -> Any:
            return _LOAD(self, pointers, mask, None, None, None, False)

        return launches[-1].atomic(lambda: rmw(self, operation, pointers, value, mask, *rest), look, pointers)

    def run(self: Any, *args: Any, **options: Any) -> None:
        """As GridExecutor.__call__(), of tensors on the CPU, but for the loop over the grid."""
        options = {name: value for name, value in options.items() if name in self.arg_names}
        replaced = interpreter._patch_lang(self.fn)
        try:
            arguments = {
                name: value if name in self.constexprs else interpreter._implicit_cvt(value)
                for name, value in inspect.getcallargs(self.fn, *args, **options).items()
            }
            grid = self.grid(arguments) if callable(self.grid) else self.grid
            grid += (1,) * (3 - len(grid))
            interpreter.interpreter_builder.set_grid_dim(*grid)
            programs = [
                Program(index, place, lambda: self.fn(**arguments)) for index, place in enumerate(np.ndindex(*grid))
            ]
            launches.append(Launch(schedule, resident, programs))
            launches[-1].run(interpreter.interpreter_builder)
        finally:
            replaced.restore()

    with (
        accesses(scheduled_load, scheduled_store, scheduled_rmw),
        mock.patch.object(interpreter.GridExecutor, "__call__", run),
    ):
        try:
            yield launches
        except Exception as failure:
            failure.add_note(f"Under {schedule}, {resident} resident.")
            raise
