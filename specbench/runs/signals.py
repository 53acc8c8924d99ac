"""Signals that end a sweep in order: what is done is kept and reported, and the exit status says what happened."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Generator
from types import FrameType

ENDING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


class Interrupted(KeyboardInterrupt):
    """The process was asked to end. No Exception, so that nothing on the way takes it for a failure of its own."""

    def __init__(self, number: int):
        super().__init__(signal.Signals(number).name)
        self.number = number

    @property
    def status(self) -> int:
        """The exit status that shells expect."""
        return 128 + self.number


def _raise(number: int, _: FrameType | None) -> None:
    signal.signal(number, signal.SIG_DFL)  # a second one ends the process at once
    raise Interrupted(number)


@contextlib.contextmanager
def interruptible() -> Generator[None]:
    """Turns signals that would kill this process into Interrupted; what handles or ignores them already stays."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in ENDING}
    usual = (signal.SIG_DFL, signal.default_int_handler)
    for number, handler in before.items():
        if handler in usual:
            signal.signal(number, _raise)
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler in usual:
                signal.signal(number, handler)


@contextlib.contextmanager
def held_back() -> Generator[None]:
    """Signals that come inside are raised as Interrupted at its end; a second one still ends the process at once.

    For imports: a library of which a half was imported, such as PyTorch, cannot be imported again, and what is said at
    the end of a sweep needs it.
    """
    here = threading.current_thread() is threading.main_thread()
    numbers = [number for number in ENDING if here and signal.getsignal(number) is _raise]
    came: list[int] = []

    def note(number: int, _: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        came.append(number)

    for number in numbers:
        signal.signal(number, note)
    try:
        yield
    finally:
        for number in numbers:
            if number not in came:
                signal.signal(number, _raise)
        if came:
            raise Interrupted(came[0])
