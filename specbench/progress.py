"""What a user sees while a run works: messages, and progress bars (on a terminal only, so that logs stay readable)."""

from __future__ import annotations

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


def track(items: Sequence[Item], label: str) -> Iterator[Item]:
    """Yields the items under a progress bar that goes away when done."""
    yield from rich_track(items, label, console=console, transient=True, disable=not console.is_terminal)


@contextmanager
def progress(label: str, total: int) -> Generator[Callable[[int], None]]:
    """A progress bar for work that comes in pieces of no fixed size: call what it gives with how much was done."""
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(label, total=total)
        yield lambda done: bar.advance(task, done)


def say(message: str, style: str | None = None) -> None:
    """Prints a message as it is: no markup, no wrapping."""
    console.print(message, style=style, markup=False, highlight=False, soft_wrap=True)
