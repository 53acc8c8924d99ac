"""A state that is on inside a ``with`` block, for code that runs in several places and differs in one of them."""

import threading
from collections.abc import Generator
from contextlib import contextmanager


class Switch(threading.local):
    """``with switch():`` turns it on for this thread and restores what it was before. Blocks may be nested.

    Attributes:
        on: whether this thread runs inside such a block. torch.compile distinguishes code by it, as by any attribute.
    """

    def __init__(self) -> None:  # of each thread: torch.compile does not see an attribute of the class change
        self.on = False

    @contextmanager
    def __call__(self) -> Generator[None]:
        before, self.on = self.on, True
        try:
            yield
        finally:
            self.on = before
