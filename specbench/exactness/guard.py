"""Calls of the verifier under test: whatever it does wrong is named with the fixture and the request it did it on.

A verifier is code of others: it may raise, return something else, or never return. All calls go through ``verify``.
"""

from __future__ import annotations

import contextlib
import inspect
import signal
import threading
import time
import traceback
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor

from specbench.core.errors import ArgumentError, SpecbenchError
from specbench.core.machine.signals import held_back
from specbench.core.types import LogitRows, Verification
from specbench.exactness.reference import VerifyCall
from specbench.rules import RuleInfo
from specbench.rules.verifier import DraftSampler, Limits, Verifier, malformed, unlike

RETURN = "Return Verification(token_ids [B, max_draft_tokens + 1], num_accepted [B]), both int64."
DRAFT_RETURN = "Return (tokens [n] int64, LogitRows that they were drawn from)."
_SIGNATURE = "def verify(self, draft, target, streams) -> Verification"
_SLOW = "Raise protocol.call_seconds if it is only slow."
_TRIED = 48  # requests of a failing batch that are tried alone
_TICKS = 10  # in which the time of a call is counted: while this process is stopped (SIGSTOP, Ctrl-Z) at most one comes


class VerifierFault(SpecbenchError):
    """The verifier under test did what no verifier may.

    Attributes:
        fixture: the name of the fixture, or of the call of D, that it was verifying; empty before the first.
        problem: what it did, and what to do instead.
        request: the request that shows it, in words; empty where none does alone.
    """

    def __init__(self, fixture: str, problem: str, request: str = ""):
        of_fixture = f"On the fixture {fixture!r}: " if fixture else ""
        where = f"On {fixture}: " if fixture.startswith("call ") else of_fixture
        super().__init__(where + problem + (f" Shown by {request}." if request else ""))
        self.fixture, self.problem, self.request = fixture, problem, request

    def __reduce__(self) -> tuple[Any, ...]:
        return VerifierFault, (self.fixture, self.problem, self.request)


class _TooLongError(BaseException):
    """Not an Exception, which the verifier's own code may catch."""


class Stopped(BaseException):
    """A signal asks this process to end: ``verify`` calls the verifier no more. Not an Exception, as above."""


@dataclass
class _Limit:
    seconds: float | int = 0
    fixture: str = ""
    begun: float | None = None  # of the call under way
    ticks: int = 0  # of it
    stopped: bool = False


_LIMIT = _Limit()


@contextlib.contextmanager
def call_limit(seconds: float | int, stuck: Callable[[VerifierFault], None] | None = None) -> Generator[None]:
    """Calls inside may take so long each; 0 is no limit. A call is interrupted in Python code of the main thread.

    Args:
        stuck: called from another thread where a call still has not ended after twice as long, since it hangs in
            compiled code, which Python cannot interrupt; it should save what there is and end the process.
    """
    before, _LIMIT.seconds = _LIMIT.seconds, seconds
    ended = threading.Event()
    if seconds and stuck is not None:
        threading.Thread(target=_watch, args=(ended, stuck), daemon=True).start()
    try:
        yield
    finally:
        ended.set()
        _LIMIT.seconds = before


@contextlib.contextmanager
def stoppable() -> Generator[None]:
    """Inside, a signal that would end this process ends calls of the verifier instead; it is raised when this ends.

    ``verify`` raises Stopped, in the call under way too, and nothing else does: what is computed from the outcome of a
    call is computed whole, so that no request is counted whose surprise is not.
    """
    try:
        with held_back(_stop_calls):
            yield
    finally:
        _LIMIT.stopped = False


def stopped() -> bool:
    """Whether a signal came in ``stoppable``."""
    return _LIMIT.stopped


def _stop_calls() -> None:
    _LIMIT.stopped = True
    if _LIMIT.begun is not None:
        raise Stopped


def limit() -> float | int:
    """Seconds that a call may take here; 0 is no limit."""
    return _LIMIT.seconds


def _watch(ended: threading.Event, stuck: Callable[[VerifierFault], None]) -> None:
    tick, waited, before = min(1.0, _LIMIT.seconds), 0.0, None
    while not ended.wait(tick):
        begun = _LIMIT.begun
        waited, before = waited + tick if begun == before else 0.0, begun
        if begun is not None and waited > 2 * _LIMIT.seconds:
            problem = f"verify never returned within {2 * _LIMIT.seconds:g} seconds. {_SLOW}"
            stuck(VerifierFault(_LIMIT.fixture, problem))
            return


def check_attributes(verifier: object) -> None:
    """Raises VerifierFault for what is no verifier at all."""
    name = type(verifier).__name__
    for attribute, kind, usual, remedy in (
        ("rule", str | RuleInfo, None, 'Write rule = "token" into the class.'),
        ("lossless", bool, None, "Write lossless = True into the class."),
        ("limits", Limits, Limits(), "Write a specbench.rules.Limits, or leave it out."),
    ):
        value = getattr(verifier, attribute, usual)
        if not isinstance(value, kind):
            state = "has no attribute" if value is None else f"has {value!r} as its attribute"
            raise VerifierFault("", f"{name} {state} {attribute}. {remedy}")
    method = getattr(verifier, "verify", None)
    if not callable(method):
        raise VerifierFault("", f"{name} has no method verify(draft, target, streams). See rules/verifier.py.")
    try:
        signature = inspect.signature(method, follow_wrapped=False)
    except (TypeError, ValueError):  # compiled code without a signature
        return
    try:
        signature.bind("draft", "target", "streams")
    except TypeError:
        problem = f"{name} has verify{signature}, which is called as verify(draft, target, streams)"
        raise VerifierFault("", f"{problem}. Write {_SIGNATURE}; see docs/verifier.md.") from None


def verify(verifier: Verifier, call: VerifyCall) -> Verification:
    """What the verifier makes of a call.

    Raises:
        ArgumentError: the verifier's own, by which it refuses what it is not made for.
        VerifierFault: anything else that it raised or returned, or that it did not return.
        Stopped: a signal came (``stoppable``).
    """
    _LIMIT.fixture = call.name
    batch = f"a batch of {len(call.counts):,} requests"
    try:
        problem = _problem(verifier, call)
        if isinstance(problem, Verification):
            return problem
        for b in torch.arange(min(len(call.counts), _TRIED), device=call.counts.device):
            one = call.only(b[None])
            with contextlib.suppress(ArgumentError):  # refused alone, which does not excuse the batch
                if not isinstance(_problem(verifier, one), Verification):
                    raise VerifierFault(call.name, problem, _described(one))
    except _TooLongError:
        problem = f"verify never returned: it was stopped after {_LIMIT.seconds:g} seconds. {_SLOW}"
    raise VerifierFault(call.name, problem, batch)


def draft(own: DraftSampler, name: str, rows: LogitRows, u: Float64[Tensor, " n"]) -> tuple[Tensor, LogitRows]:
    """What the verifier's own ``draft_tokens`` draws from some rows; what it does wrong is named as ``verify``'s is.

    Args:
        name: of the fixture, or of the call of D.

    Raises:
        ArgumentError, VerifierFault: as ``verify``.
    """
    try:
        drawn: Any = own(rows, u)
    except ArgumentError:
        raise
    except Exception as error:
        raise VerifierFault(name, _raised("draft_tokens", error)) from error
    if problem := _malformed_draft(drawn, rows):
        raise VerifierFault(name, problem)
    return drawn


def _malformed_draft(drawn: object, rows: LogitRows) -> str:
    """What makes a result of ``draft_tokens`` no tokens drawn from rows; empty if nothing does."""
    if not (isinstance(drawn, tuple) and len(drawn) == 2):
        return f"draft_tokens returned a {type(drawn).__name__}. {DRAFT_RETURN}"
    (tokens, stated), (count, vocabulary) = drawn, rows.logits.shape
    if not isinstance(stated, LogitRows) or stated.logits.shape != rows.logits.shape:
        return f"draft_tokens returned no LogitRows [{count}, {vocabulary}] beside its tokens. {DRAFT_RETURN}"
    if problem := unlike("tokens", tokens, (count,), rows.logits.device):
        return f"draft_tokens returned {problem} {DRAFT_RETURN}"
    outside = bool(((tokens < 0) | (tokens >= vocabulary)).any())
    return f"draft_tokens returned a token outside of the vocabulary. {DRAFT_RETURN}" if outside else ""


def _described(call: VerifyCall) -> str:
    """A call of one request in words."""
    draft, target, streams = call.draft, call.target, call.streams
    rows = "one-hot drafts" if draft.rows is None else f"{draft.rows.logits.dtype} draft logits"
    return (
        f"a request of seed {int(streams.seeds[0])} at position {int(streams.positions[0])} that drafted "
        f"{draft.token_ids.tolist()} of {call.vocabulary:,} tokens ({rows}, max_draft_tokens "
        f"{draft.max_draft_tokens}, target temperature {float(target.temperature[0]):g})"
    )


def _problem(verifier: Verifier, call: VerifyCall) -> Verification | str:
    """The verification, or what is wrong with it. Raises _TooLongError at the limit of a call."""
    if _LIMIT.stopped:
        raise Stopped
    device = call.target.logits.device
    try:
        with _under_way(_LIMIT.seconds):
            result: Any = verifier.verify(call.draft, call.target, call.streams)
            if device.type == "cuda":  # what goes wrong on the device is raised here, and not at some later call
                torch.cuda.synchronize(device)
    except ArgumentError:
        raise
    except SystemExit as error:
        return f"verify ended the program (SystemExit: {error})."
    except Exception as error:
        return _raised("verify", error)
    problem = malformed(result, len(call.counts), call.draft.max_draft_tokens + 1, device)
    return f"verify returned {problem} {RETURN}" if problem else result


def _raised(method: str, error: Exception) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{method} raised {type(error).__name__}: {error} ({last.filename}, line {last.lineno})."


def _tick(*_: object) -> None:
    _LIMIT.ticks += 1
    if _LIMIT.ticks >= _TICKS:
        signal.setitimer(signal.ITIMER_REAL, 0)
        raise _TooLongError


@contextlib.contextmanager
def _under_way(seconds: float | int) -> Generator[None]:
    """Raises _TooLongError in Python code that runs longer, and Stopped if a signal comes.

    What hangs in a compiled function is not interrupted. 0 seconds is no limit.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGALRM) if seconds else None
    try:
        _LIMIT.begun, _LIMIT.ticks = time.monotonic(), 0
        if seconds:
            signal.signal(signal.SIGALRM, _tick)  # not a function of its own in each call: tests check its types anew
            signal.setitimer(signal.ITIMER_REAL, seconds / _TICKS, seconds / _TICKS)
        yield
    finally:
        try:
            _LIMIT.begun = None  # a signal may raise until this is done; the timer is ended all the same
        finally:
            _LIMIT.begun = None
            if seconds:
                signal.setitimer(signal.ITIMER_REAL, 0)
                signal.signal(signal.SIGALRM, before)
