"""What a user sees while a run works: messages, and progress: bars on a terminal, and elsewhere a line every 30 s."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

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


def name_job(name: str) -> None:
    """Sets what bars and lines of progress begin with, such as ``job 3``; empty for nothing."""
    _Current.job = name


def _named(label: str) -> str:
    return f"{_Current.job}: {label}" if _Current.job else label


class _Lines:
    """Says at most every 30 s how far work is. Work that takes less is not mentioned, so that logs stay readable."""

    def __init__(self, label: str, total: int):
        self.label, self.total, self.done = label, total, 0
        self.started = self.said = time.monotonic()

    def advance(self, done: int) -> None:
        """Counts what was done."""
        self.done += done
        now = time.monotonic()
        if now - self.said < LINE_SECONDS or console.is_terminal or not self.done < self.total:
            return
        self.said = now
        left = (now - self.started) * (self.total - self.done) / self.done
        say(_named(f"{self.done / self.total:.0%} of {self.label}, {_duration(left)} left"))


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def track(items: Sequence[Item], label: str) -> Iterator[Item]:
    """Yields the items; shows how many are done."""
    lines = _Lines(label, len(items))
    for item in rich_track(items, _named(label), console=console, transient=True, disable=not console.is_terminal):
        yield item
        lines.advance(1)


@contextmanager
def progress(label: str, total: int) -> Generator[Callable[[int], None]]:
    """Progress of work that comes in pieces of no fixed size: call what it gives with how much was done."""
    lines = _Lines(label, total)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(_named(label), total=total)

        def advance(done: int) -> None:
            bar.advance(task, done)
            lines.advance(done)

        yield advance


def say(message: str, style: str | None = None) -> None:
    """Prints a message as it is: no markup, no wrapping."""
    console.print(message, style=style, markup=False, highlight=False, soft_wrap=True)
