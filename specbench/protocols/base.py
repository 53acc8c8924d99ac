"""What a protocol gets and what it returns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from specbench.decoding import Request
from specbench.drafters import Drafter
from specbench.models import Engine, Pair
from specbench.verifiers import Verifier


@dataclass(frozen=True)
class RunContext:
    """Everything a run is made of, built and validated."""

    pair: Pair
    target: Engine
    drafter: Drafter
    verifier: Verifier
    requests: Sequence[Request]
    gamma: int
    batch_size: int
    seed: int


@dataclass
class Outcome:
    """What a run found: fields of results.RunRow, and the rows of its other tables (see results.py)."""

    measured: dict[str, Any]
    steps: list[dict[str, Any]] = field(default_factory=list)
    empirical: list[dict[str, Any]] = field(default_factory=list)
    texts: list[dict[str, Any]] = field(default_factory=list)


@runtime_checkable
class MeasurementProtocol(Protocol):
    """Runs a measurement. Built from its yaml's ``_target_`` and arguments."""

    def run(self, context: RunContext) -> Outcome:
        """Raises SpecbenchError for anything the user can mend."""
        ...
