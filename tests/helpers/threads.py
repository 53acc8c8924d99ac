"""Two threads that would meet at one place, if nothing kept them apart."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

SECONDS = 0.5  # that the first waits for the second, before it goes on alone


class Meeting:
    """Counts the threads at a place that at most one thread may be at.

    Attributes:
        together: whether two threads were there at the same time.
    """

    def __init__(self) -> None:
        self._both, self.together = threading.Barrier(2), False

    def visit(self) -> None:
        """Waits for another thread."""
        try:
            self._both.wait(SECONDS)
            self.together = True
        except threading.BrokenBarrierError:
            pass


def in_two_threads(call: Callable[[], object]) -> None:
    """Runs a call in two threads at once. Raises what one of them raised."""
    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(call) for _ in range(2)]:
            done.result()
