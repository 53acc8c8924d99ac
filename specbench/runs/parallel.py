"""``parallel=tensor``: how ranks stay in step from job to job, and how they end if one of them does.

Ranks go on with a sweep only if all of them ended a job alike: done, or failed with the same words. Otherwise some may
wait for others in the middle of a layer, and the run ends; torchrun then ends what is left of it.
"""

import math
import os
import re
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Generator
from contextlib import contextmanager

from specbench.core.errors import SpecbenchError, message_of
from specbench.core.machine import ranks
from specbench.core.machine.ranks import RankError
from specbench.core.machine.signals import ENDING, Interrupted

PATIENCE = 20.0  # seconds in which the others say how they ended, after this rank failed
GRACE = 10.0  # seconds in which a process that is asked to end does so; torchrun kills it after 30


class Parted(Interrupted):
    """The ranks did not end a job alike."""

    def __init__(self, reason: str):
        KeyboardInterrupt.__init__(self, reason)

    @property
    def status(self) -> int:
        return 1


def follow(work: Callable[[], object]) -> None:
    """A job on a rank that does not lead: what rank 0 does, without a word.

    Raises:
        Parted: it ended otherwise here than on another rank.
    """
    if not ranks.broadcast_from_rank0(lambda: False):  # whether rank 0 attempts it
        return
    message = ""
    try:
        work()
    except (Exception, SystemExit) as error:
        message = words_for_ranks(error)
        if not isinstance(error, SpecbenchError):
            traceback.print_exc()
    settle(message)


def words_for_ranks(error: BaseException) -> str:
    """How a rank tells the others of an error: the same words on all, unless it came of waiting for one of them."""
    return _of_rank(ranks.rank(), message_of(error)) if _of_waiting(error) else message_of(error)


def cause_of(error: BaseException) -> str:
    """Why a job failed on this rank: what another one has said already, if it failed in waiting for it."""
    if not _of_waiting(error):
        return message_of(error)
    words = words_for_ranks(error)
    return heard(words) or f"another rank has ended, it seems ({words})"


def _of_waiting(error: BaseException) -> bool:
    """Whether an error is of what ranks compute together."""
    return ranks.size() > 1 and isinstance(error, RuntimeError) and bool(re.search("gloo|nccl", str(error), re.I))


def interrupted(error: KeyboardInterrupt) -> str:
    """Why a job was interrupted: torchrun asks all processes to end if one has ended."""
    reason = f"interrupted ({error or 'SIGINT'})"
    if ranks.size() == 1:
        return reason
    return f"{reason}; {heard(reason) or 'torchrun does so too if another rank has ended'}"


def heard(message: str) -> str:
    """Why another rank has failed; empty if none has said so. The others hear ``message``."""
    try:
        outcomes = ranks.outcomes(message, 0.0) if ranks.size() > 1 else {}
    except RuntimeError:  # torchrun has gone, and its store
        return ""
    return next(
        (_of_rank(number, outcome) for number, outcome in outcomes.items() if outcome and number != ranks.rank()), ""
    )


@contextmanager
def watched(write_failed: Callable[[str], object]) -> Generator[None]:
    """While the block runs on several ranks: has a process end that torchrun asks to end, and that cannot hear it.

    A GPU that waits for another rank, which has died, keeps the main thread waiting outside of Python for ever.

    Args:
        write_failed: gets the reason, before the process ends.
    """
    if ranks.size() == 1 or threading.current_thread() is not threading.main_thread():
        yield
        return
    (heard, writer), left = os.pipe(), threading.Event()
    os.set_blocking(writer, False)
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)  # a signal is written here, whatever Python does

    def wait() -> None:
        while (number := os.read(heard, 1)) and number[0] not in ENDING:
            pass
        if number and not left.wait(GRACE):
            name = signal.Signals(number[0]).name
            try:
                write_failed(f"{name} while it waited for another rank, which has ended, it seems")
            finally:
                os._exit(128 + number[0])
        os.close(heard)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    try:
        yield
    finally:
        left.set()
        signal.set_wakeup_fd(before)
        os.close(writer)
        thread.join()


def confirm() -> None:
    """Ends a job that this rank has done. Raises RankError if another one failed."""
    if ranks.size() > 1:
        for number, outcome in ranks.outcomes("", math.inf).items():
            if outcome:
                raise RankError(_of_rank(number, outcome))


def settle(message: str) -> None:
    """Ends a job of this rank.

    Args:
        message: why it failed; empty if it did not.

    Raises:
        Parted: another rank says something else, or nothing.
    """
    if ranks.size() == 1:
        return
    outcomes = ranks.outcomes(message, PATIENCE if message else math.inf)
    if [outcomes.get(number) for number in range(ranks.size())] == [message] * ranks.size():
        return
    if message and not ranks.is_rank0():  # else silent; rank 0 may not hear it any more
        print(_of_rank(ranks.rank(), message), file=sys.stderr, flush=True)
    raise Parted(heard(message) or "another rank did not end as this one did")


def _of_rank(number: int, outcome: str) -> str:
    return outcome if outcome.startswith("rank ") else f"rank {number}: {outcome}"
