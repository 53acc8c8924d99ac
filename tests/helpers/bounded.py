"""Bounds of time and memory for one call, whoever runs away in it: Python, C++ or Rust."""

import faulthandler
import resource
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

STATM = Path("/proc/self/statm")


@contextmanager
def bounded(seconds: float = 60.0, gibibytes: float = 2.0) -> Generator[None]:
    """Ends the whole process, with a traceback, if the block takes longer; and lets it have so much memory more.

    A file of some kilobytes that asks for gigabytes fails then, as on a small machine: the library raises that there is
    no memory, or ends the process. (Linux; elsewhere the memory is not bounded.)
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    faulthandler.dump_traceback_later(seconds, exit=True, file=sys.__stderr__)
    try:
        if STATM.exists():
            used = int(STATM.read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (used + int(gibibytes * 2**30), hard))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        faulthandler.cancel_dump_traceback_later()
