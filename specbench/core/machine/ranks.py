"""Ranks: the processes of one run that torchrun starts side by side, each of which computes a part of the target.

Rank 0 leads: it alone plans, writes and prints. The others do what it does, at the same time, since each waits for the
others in every layer. What the clock or the disk decides would part them, so rank 0 decides it for all
(:func:`broadcast_from_rank0`). What went wrong on any of them is told to all (:func:`together`). Messages go through
the store that torchrun keeps, so that they need no GPU. Without torchrun there is one rank, and nothing here does
anything.
"""

import functools
import json
import os
import time
from collections.abc import Callable
from typing import Any, TypeVar

from specbench.core.errors import SpecbenchError

PAUSE = 0.01  # seconds between two looks for a message
Value = TypeVar("Value")


class RankError(SpecbenchError):
    """What went wrong on a rank, raised on all of them."""


def launched() -> bool:
    """Whether torchrun started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def size() -> int:
    return int(os.environ["WORLD_SIZE"]) if launched() else 1


def rank() -> int:
    """The number of this process, from 0. Ranks are on one machine, so that it is the number of its GPU too."""
    return int(os.environ["RANK"]) if launched() else 0


def is_rank0() -> bool:
    """Whether this process plans, writes and prints."""
    return rank() == 0


def broadcast_from_rank0(decide: Callable[[], Value]) -> Value:
    """What rank 0 decides, on every rank; ``decide`` is called there alone. Every rank has to come here.

    Args:
        decide: returns what JSON can hold.

    Raises:
        SpecbenchError: what ``decide`` raises, on all ranks.
        RankError: rank 0 has failed elsewhere.
    """
    if size() == 1:
        return decide()
    place = _next_place()
    if is_rank0():
        try:
            value = decide()
        except SpecbenchError as error:
            _post(place, {"error": str(error)})
            raise
        _post(place, {"value": value})
        return value
    message = _read(place)
    if "error" in message:
        raise RankError(message["error"])
    return message["value"]


def together(work: Callable[[], Value]) -> Value:
    """What ``work`` returns on this rank, if it fails on none. Every rank has to come here.

    Raises:
        RankError: the same on every rank, if it failed on any.
    """
    if size() == 1:
        return work()
    place, failure, value = _next_place(), None, None
    try:
        value = work()
    except Exception as error:
        failure = error
    _post(f"{place}/{rank()}", "" if failure is None else str(failure) or type(failure).__name__)
    problems = [_read(f"{place}/{number}") for number in range(size())]
    for number, problem in enumerate(problems):
        if problem:
            raise RankError(problem if len(set(problems)) == 1 else f"rank {number}: {problem}") from failure
    return value  # ty: ignore[invalid-explicit-return]


def begin(scope: str) -> None:
    """What is told from here on is of ``scope``, such as a job; ranks that had told different things are in step."""
    _messages.clear()
    _messages["scope"] = scope


def outcomes(message: str, seconds: float) -> dict[int, str]:
    """What every rank says of how the scope ended, by its number.

    Args:
        seconds: how long the others are waited for. Ranks that say nothing until then are missing.
    """
    place, until = _next_place("ended"), time.monotonic() + seconds
    _post(f"{place}/{rank()}", message)
    if message:
        _post(_next_place("failed"), message if message.startswith("rank ") else f"rank {rank()}: {message}")
    messages = {number: _read(f"{place}/{number}", until) for number in range(size())}
    return {number: text for number, text in messages.items() if text is not None}


_messages: dict[str, Any] = {}  # the scope, and how many messages there were in it


def _next_place(name: str | None = None) -> str:
    """A name that every rank gives to the same message."""
    if name is None:
        name = _messages["messages"] = _messages.get("messages", 0) + 1
    return f"{_messages.get('scope', 'planning')}/{name}"


@functools.cache
def store() -> Any:
    """torchrun's store (``torch.distributed.Store``)."""
    from torch.distributed import PrefixStore, rendezvous

    store, _, _ = next(iter(rendezvous("env://", rank(), size())))
    return PrefixStore("specbench", store)


def _post(place: str, value: Any) -> None:
    store().set(place, json.dumps(value))


def _read(place: str, until: float | None = None) -> Any:
    """A message, looked for again and again, where one long wait would leave signals unheard.

    Args:
        until: when to give up and return None; None looks until a rank has failed, which then raises RankError.
    """
    failed = _next_place("failed")
    while not store().check([place]):
        if until is None:
            if store().check([failed]) and not store().check([place]):
                raise RankError(json.loads(store().get(failed)))
        elif time.monotonic() >= until:
            return None
        time.sleep(PAUSE)
    return json.loads(store().get(place))
