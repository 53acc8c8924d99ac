"""Independent work, numbered, shared among processes of one machine; the results come in order.

On a CPU processes are forked, so that a verifier need not be pickled and a script needs no main guard. A process that
has used a GPU cannot be forked: there new ones are spawned, by the command line alone, with a copy of the verifier. A
process that dies or hangs loses nothing but time: its share is done by the first one, whose own guard names what is
wrong.
"""

import contextlib
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any, TypeVar

import torch

from specbench.core.machine.devices import one_thread
from specbench.core.rng import seed_global_generators
from specbench.exactness import guard
from specbench.exactness.guard import VerifierFault

MOST = 16  # processes
MEMORY_EACH = 4 * 2**30  # bytes of a GPU's memory
FEWEST_EACH = {"cpu": 800, "cuda": 100}  # pieces that are worth a process: on a GPU every third compiles a kernel
_ORPHANED = 1.0  # seconds between looks whether the parent still lives

T = TypeVar("T")


def processes(pieces: int, device: torch.device) -> int:
    """How many processes to use for pieces of work on a device: PyTorch's threads, where that is safe and worth it."""
    most = min(torch.get_num_threads(), MOST, pieces // FEWEST_EACH[device.type])
    if multiprocessing.current_process().daemon:  # which may have no children
        return 1
    if device.type == "cuda":
        main = getattr(sys.modules["__main__"], "__spec__", None)  # which spawned processes import: a script runs anew
        if main is None or main.name != "specbench.__main__":
            return 1
        most = min(most, torch.cuda.mem_get_info(device)[0] // MEMORY_EACH)
    elif not hasattr(os, "fork") or torch.cuda.is_initialized():
        return 1
    return max(1, most)


def in_order(
    work: Callable[[int], T], pieces: int, share: int, patience: float | int, spawned: Callable[[int], T] | None = None
) -> Generator[T]:
    """``work(0)``, ``work(1)``, ...; of ``share`` processes each does every ``share``-th, this one among them.

    Args:
        work: its results can be pickled.
        patience: seconds without a result after which a process counts as hanging; 0 is no limit.
        spawned: the work of the other processes if they are to be spawned; it can be pickled, or there are none.

    Raises:
        VerifierFault: that a piece of work raised, wherever it was done.
    """
    if share < 2:
        yield from map(work, range(pieces))
        return
    with _helpers(work, pieces, share, spawned) as helpers:
        for i in range(pieces):
            helper = helpers.get(i % share)
            answer = None if helper is None else _answer(helper[1], patience)
            if answer is None:
                if helper is not None:
                    _end(*helpers.pop(i % share))
                answer = work(i)
            if isinstance(answer, VerifierFault):
                raise answer
            yield answer


@contextlib.contextmanager
def _helpers(
    work: Callable[[int], Any], pieces: int, share: int, spawned: Callable[[int], Any] | None
) -> Generator[dict[int, tuple[Any, Connection]]]:
    """Processes, with what they answer through, by the first piece that is theirs."""
    context: Any = multiprocessing.get_context("fork" if spawned is None else "spawn")
    helpers: dict[int, tuple[Any, Connection]] = {}
    conditions = os.getpid(), torch.is_inference_mode_enabled(), guard.limit()
    try:
        for first in range(1, share):
            answers, to_parent = context.Pipe(duplex=False)
            arguments = (spawned or work, range(first, pieces, share), to_parent, *conditions)
            process = context.Process(target=_run, args=arguments, daemon=True)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads: one_thread() is in force
                try:
                    process.start()
                except (AttributeError, TypeError, pickle.PicklingError):
                    break  # what cannot be pickled is done by this process alone
                finally:
                    to_parent.close()  # so that the answers end when the process does
            helpers[first] = process, answers
        yield helpers
    finally:
        for helper in helpers.values():
            _end(*helper)


def _end(process: Any, answers: Connection) -> None:
    process.kill()
    process.join()
    answers.close()


def _answer(answers: Connection, patience: float | int) -> Any:
    """The next result of a process, or the VerifierFault that ended it; None if it died or hangs."""
    with contextlib.suppress(EOFError, OSError):
        if answers.poll(patience or None):
            return answers.recv()
    return None


def _run(
    work: Callable[[int], Any], numbers: range, to_parent: Connection, parent: int, inference: bool, limit: float | int
) -> None:
    """What another process does with its numbers."""

    def send(answer: Any) -> None:
        with contextlib.suppress(BrokenPipeError):  # the parent has all that it wants, or has died
            to_parent.send(answer)

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends it
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    # Numbers of its own: a verifier may draw from these generators, and counts take calls to be independent. Without it
    # all processes would go on with the parent's numbers.
    seed_global_generators(torch.initial_seed() + numbers.start)
    with torch.inference_mode(inference), one_thread(), guard.call_limit(limit), ThreadPoolExecutor(1) as sender:
        for number in numbers:  # the sender, since work goes on while a pipe is full
            try:
                sender.submit(send, work(number))
            except VerifierFault as fault:
                sender.submit(send, fault)
                return


def _end_with(parent: int) -> None:
    """Ends this process when its parent has died, by whatever signal."""
    while os.getppid() == parent:
        time.sleep(_ORPHANED)
    os._exit(1)
