"""The verifier under test as examples run it: in new objects, which owe nothing to earlier calls."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from specbench.rules.verifier import Verifier

MOST_CALLS, _SECONDS = 4096, 20.0  # of one object with the same request, and the time for them


def unused_copy(verifier: Verifier) -> Verifier | None:
    """Returns a copy of a verifier that was not called yet; None if it cannot be copied."""
    try:
        fresh = copy.deepcopy(verifier)
    except Exception:  # of any class: locks, generators and handles cannot be copied
        return None
    return None if fresh is verifier else fresh


@dataclass(frozen=True)
class Subject:
    """A verifier under test.

    Attributes:
        verifier: the object given as a Verifier. Examples run it if there is no unused object.
        unused: an object like it that is never called, only copied; None if there is none.
    """

    verifier: Any
    unused: Verifier | None = None

    def new_object(self) -> Verifier:
        """Returns a copy of the unused object."""
        return self.verifier if self.unused is None else copy.deepcopy(self.unused)

    def first_wrong_call(self, run: Callable[[Verifier], Tensor], wanted: Tensor) -> tuple[int, Tensor] | None:
        """Returns the first call of a new object that fails, of calls that are all the same, with its tokens.

        Args:
            run: makes the call and returns the tokens.
            wanted: tokens of a call that does not fail.

        Returns:
            None if no call fails, or another one fails with a second object: noise decides, and no history.
        """
        if self.unused is None:
            return None
        call = self._first_wrong(run, wanted, MOST_CALLS)
        again = None if call is None else self._first_wrong(run, wanted, call[0])
        same = call is not None and again is not None and call[0] == again[0] and torch.equal(call[1], again[1])
        return call if same else None

    def _first_wrong(self, run: Callable[[Verifier], Tensor], wanted: Tensor, most: int) -> tuple[int, Tensor] | None:
        used, started = self.new_object(), time.perf_counter()
        for number in range(1, most + 1):
            tokens = run(used)
            if not torch.equal(tokens, wanted):
                return number, tokens
            if time.perf_counter() - started > _SECONDS:
                break
        return None
