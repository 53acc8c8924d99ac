"""Bounds of time and memory for one call, whether Python, C++ or Rust runs away in it."""

import faulthandler
import resource
import signal
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from specbench.core.errors import SpecbenchError

STATM = Path("/proc/self/statm")
SECONDS = 60
GIBIBYTES = 2  # beyond what the process has already


@contextmanager
def bounded() -> Generator[None]:
    """Ends the whole process, with a traceback, if the block computes for longer; and lets it have so much memory more.

    Seconds are the processor's, so that a machine that is busy or was suspended ends nothing. What waits, for a pipe
    for one, is ended after ten times as many seconds.

    A file of some kilobytes that asks for gigabytes fails then, as on a small machine: the library raises that there is
    no memory, or ends the process. (Linux; elsewhere the memory is not bounded.)
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    cpu_soft, cpu_hard = resource.getrlimit(resource.RLIMIT_CPU)
    faulthandler.dump_traceback_later(10 * SECONDS, exit=True, file=sys.__stderr__)
    faulthandler.register(signal.SIGXCPU, file=sys.__stderr__, chain=True)
    try:
        resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time() + SECONDS) + 1, cpu_hard))
        if STATM.exists():
            used = int(STATM.read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (used + GIBIBYTES * 2**30, hard))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_soft, cpu_hard))
        faulthandler.unregister(signal.SIGXCPU)
        faulthandler.cancel_dump_traceback_later()


def refusal(read: Callable[[], object], *starts: str, longest: int) -> str | None:
    """What was said against something that is read, in one line that begins so; None if it was read."""
    with bounded():
        try:
            read()
        except SpecbenchError as error:
            message = str(error)
        else:
            return None
    assert message.startswith(starts)
    assert message.endswith((".", ")"))
    assert len(message) < longest
    assert "\n" not in message
    assert not any(word in message.lower() for word in ("memory", "alloc"))
    return message
