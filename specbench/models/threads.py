"""How many CPU threads a run's models get, and why.

More threads are not always faster: PyTorch's threads wait for one another at the end of each operation, so that on a
busy machine all of them wait for the one whose core other work has.
"""

import time
from dataclasses import dataclass
from statistics import median

import torch

from specbench.core.machine import ranks
from specbench.core.machine.devices import PYTORCH_THREADS
from specbench.core.machine.progress import say
from specbench.models.cached_model import CachedModel

SMALL_MODEL = 50_000_000  # parameters; such matrices gain little from a second thread on any machine
MOST_TOKENS = 16  # of a timed pass
PASSES = 5  # timed with each number of threads, after one untimed pass
LONGEST = 20  # seconds of passes after which no more are timed, as on a machine with many processes
TIMED = "a pass over "  # what the reason begins with if passes were timed


@dataclass(frozen=True)
class Threads:
    """The number of CPU threads of a run, and the reason for it."""

    count: int
    reason: str


def choose_threads(
    configured: int, target: CachedModel, requests: int, width: int, earlier: Threads | None = None
) -> Threads:
    """Sets and returns the threads that PyTorch uses: the configured number, else the faster of one and all.

    A target under 50M parameters gets one thread. A larger one on a CPU is timed with one thread and with PyTorch's
    default, in turns, on passes as wide as a step's.

    Args:
        configured: the user's number; 0 leaves the choice open.
        target: its cache is empty before and afterwards.
        requests, width: decoded side by side, and tokens of each in a step.
        earlier: the choice that timing led to before.
    """
    if configured:
        chosen = Threads(configured, "as given")
    elif target.model.num_parameters() < SMALL_MODEL:
        chosen = Threads(1, "one, since the target has under 50M parameters")
    elif PYTORCH_THREADS == 1 or target.device.type != "cpu":
        chosen = Threads(PYTORCH_THREADS, "PyTorch's default")
    else:
        width = min(width, MOST_TOKENS)
        chosen = earlier or _faster(target, max(1, min(requests, MOST_TOKENS // width)), width)
    torch.set_num_threads(chosen.count)
    return chosen


def _faster(target: CachedModel, rows: int, width: int) -> Threads:
    seconds: dict[int, list[float]] = {1: [], PYTORCH_THREADS: []}
    spent = 0.0
    for number in range(PASSES + 1):
        for threads in sorted(seconds, reverse=number % 2 == 1):
            torch.set_num_threads(threads)
            passed = _pass_seconds(target, rows, width)
            seconds[threads] += [passed] if number else []
            spent += passed
        if number and ranks.broadcast_from_rank0(lambda: spent > LONGEST):  # noqa: B023  # called at once
            break
    target.start([], 0)
    one, every = (1000 * median(times) for times in seconds.values())
    took = f"{TIMED}{rows * width} tokens took {one:.0f} ms with one thread and {every:.0f} ms with {PYTORCH_THREADS}"
    count, reason = ranks.broadcast_from_rank0(lambda: (PYTORCH_THREADS if every < one else 1, took))  # clocks differ
    chosen = Threads(count, reason)
    say(f"threads={chosen.count}: {chosen.reason}")
    return chosen


def _pass_seconds(target: CachedModel, rows: int, width: int) -> float:
    fed = torch.zeros(rows, width, dtype=torch.int64, device=target.device)
    target.start([[0]] * rows, width + 1)
    started = time.perf_counter()
    target.extend(fed, torch.full((rows,), width, device=target.device))
    return time.perf_counter() - started
