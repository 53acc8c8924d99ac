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
