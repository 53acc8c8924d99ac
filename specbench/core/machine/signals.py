"""Signals that end a sweep in order: what is done is kept and reported, and the exit status says what happened."""

import contextlib
import signal
import threading
from collections.abc import Callable, Generator
from types import FrameType
from typing import Any

ENDING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


class Interrupted(KeyboardInterrupt):
    """The process was asked to end. No Exception, so that nothing on the way takes it for a failure of its own."""

    def __init__(self, number: int):
        super().__init__(signal.Signals(number).name)
        self.number = number

    @property
    def status(self) -> int:
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
    usual = (signal.SIG_DFL, signal.default_int_handler)
    before = {number: handler for number in ENDING if (handler := signal.getsignal(number)) in usual}
    for number in before:
        signal.signal(number, _raise)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def held_back(at_once: Callable[[], None] = lambda: None) -> Generator[None]:
    """Delays signals that end this process in order: their own handlers receive them when the context ends.

    For imports: a library of which a half was imported, such as PyTorch, cannot be imported again, and what is said at
    the end of a sweep needs it. For certificates: what was judged is written first. A second signal of a kind is
    not delayed.

    Args:
        at_once: called when the first signal comes; it may raise.
    """
    here = threading.current_thread() is threading.main_thread()
    usual = (_raise, signal.default_int_handler)
    handlers: dict[int, Any] = {n: handler for n in ENDING if here and (handler := signal.getsignal(n)) in usual}
    came: list[int] = []

    def note(number: int, _: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL if handlers[number] is _raise else handlers[number])
        came.append(number)
        at_once()

    for number in handlers:
        signal.signal(number, note)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            if number not in came:
                signal.signal(number, handler)
        if came:
            handlers[came[0]](came[0], None)
