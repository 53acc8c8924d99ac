"""Where the time of a decoding run goes: draft, target, verify, and the rest."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Generator
from contextlib import contextmanager


class Stopwatch:
    """Adds up wall-clock seconds by phase.

    Args:
        synchronize: called before every reading of the clock, so that work queued on a GPU is counted where it belongs.
    """

    def __init__(self, synchronize: Callable[[], None]):
        self._synchronize = synchronize
        self.seconds: dict[str, float] = defaultdict(float)

    @contextmanager
    def __call__(self, phase: str) -> Generator[None]:
        self._synchronize()
        started = time.perf_counter()
        yield
        self._synchronize()
        self.seconds[phase] += time.perf_counter() - started
