"""The verifier under test as examples run it: in new objects, which owe nothing to earlier calls."""

import copy
from dataclasses import dataclass
from typing import Any

from specbench.rules.verifier import Verifier


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
