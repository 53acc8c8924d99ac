"""A state that is on inside a ``with`` block, for code that runs in several places and differs in one of them."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager


class Switch:
    """``with switch():`` turns it on and restores what it was before. Blocks may be nested.

    Attributes:
        on: whether code runs inside such a block. torch.compile distinguishes code by it, as by any attribute.
    """

    def __init__(self) -> None:
        self.on = False

    @contextmanager
    def __call__(self) -> Generator[None]:
        before, self.on = self.on, True
        try:
            yield
        finally:
            self.on = before
