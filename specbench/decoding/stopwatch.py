"""Adds up the time of a decoding run by phase: draft, target, verify, commit, and others."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from itertools import pairwise


class Stopwatch:
    """Adds up seconds by phase.

    Args:
        synchronize: called before the clock is read, so that work queued on a GPU counts for the phase that queued it.
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

    def add(self, phases: Iterable[str], stamps: Iterable[int]) -> None:
        """Adds the phases between stamps, of which there is one more than phases."""
        for phase, (begin, end) in zip(phases, pairwise(stamps), strict=True):
            self.seconds[phase] += (end - begin) * 1e-9
