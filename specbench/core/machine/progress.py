"""What a user sees while a run works: messages, and progress: bars on a terminal, and elsewhere a line every 30 s."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar, TypeVar

from rich.console import Console
from rich.progress import Progress
from rich.progress import track as rich_track

Item = TypeVar("Item")
# No emoji: names of pairs and files are shown as they are, ":smile:" too.
console = Console(stderr=True, emoji=False)
if not console.is_terminal:
    console = Console(stderr=True, emoji=False, width=150)  # a table in a log should not be squeezed into 80 columns


LINE_SECONDS = 30  # between two lines of progress outside a terminal


class _Current:
    job = ""  # what progress begins with
    lines: ClassVar[list[_Lines]] = []  # of the work under way; the last is the innermost


def name_job(name: str) -> None:
    """Sets what bars and lines of progress begin with, such as ``job 3``; empty for nothing."""
    _Current.job = name


def _named(label: str) -> str:
    return f"{_Current.job}: {label}" if _Current.job else label


class _Lines:
    """Says every 30 s how far work is. Work that takes less is not mentioned, so that logs stay readable."""

    def __init__(self, label: str, total: int, seconds: float):
        self.label, self.total, self.seconds, self.done, self.tokens = label, total, seconds, 0, 0
        self.started = self.last_line = time.monotonic()

    def advance(self, done: int) -> None:
        """Counts what was done."""
        self.done += done
        if self.done < self.total:
            self.tell(lambda: 0)

    def tell(self, more: Callable[[], int]) -> None:
        """Says a line if it is time to; ``more`` returns the tokens of what is not counted yet."""
        now = time.monotonic()
        if now - self.last_line < LINE_SECONDS or console.is_terminal:
            return
        self.last_line, passed, tokens = now, now - self.started, self.tokens + more()
        parts = [f"{self.done / self.total:.0%} of {self.label}" if self.done else self.label]
        if self.done:
            left = min(passed * (self.total - self.done) / self.done, max(0, self.seconds - passed))
            parts.append(f"{left:.0f} s left" if left < 90 else f"{left / 60:.0f} min left")
        if tokens:
            parts.append(f"{tokens / passed:.1f} tokens/s")
        say(_named(", ".join(parts)))


@contextmanager
def _lines(label: str, total: int, seconds: float = math.inf) -> Generator[_Lines]:
    lines = _Lines(label, total, seconds)
    say_in_notebook(_named(label))
    _Current.lines.append(lines)
    try:
        yield lines
    finally:
        _Current.lines.remove(lines)


def beat(tokens: Callable[[], int]) -> None:
    """Says how far the work under way is, if nothing was said for 30 s. Called between steps of decoding.

    Args:
        tokens: returns how many were decoded since the last ``count``.
    """
    if _Current.lines:
        _Current.lines[-1].tell(tokens)


def count(tokens: int) -> None:
    """Counts decoded tokens, of which lines say how many a second there were."""
    if _Current.lines:
        _Current.lines[-1].tokens += tokens


def track(items: Sequence[Item], label: str) -> Iterator[Item]:
    """Yields the items; shows how many are done."""
    with _lines(label, len(items)) as lines:
        for item in rich_track(items, _named(label), console=console, transient=True, disable=not console.is_terminal):
            yield item
            lines.advance(1)


@contextmanager
def progress(label: str, total: int, seconds: float = math.inf) -> Generator[Callable[[int], None]]:
    """Progress of work in pieces of no fixed size, which ends after these seconds at the latest.

    Yields:
        A function to call with the size of each piece that is done.
    """
    bars = Progress(console=console, transient=True, disable=not console.is_terminal)
    with _lines(label, total, seconds) as lines, bars as bar:
        task = bar.add_task(_named(label), total=total)

        def advance(done: int) -> None:
            bar.advance(task, done)
            lines.advance(done)

        yield advance


def say_in_notebook(message: str) -> None:
    """Prints a message in a notebook, where nothing else says that work has begun."""
    if console.is_jupyter:
        say(message)


@functools.cache
def say_once(message: str) -> None:
    """Prints a message unless this process has printed it: every job of a sweep has the same to say."""
    say(message)


def say(message: str, style: str | None = None) -> None:
    """Prints a message as it is: no markup, no wrapping."""
    console.print(message, style=style, markup=False, highlight=False, soft_wrap=True)
