"""The times of one call as rounds add to them, and the order in which rounds go through all cases."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from specbench.benchmark.timer import Captured
from specbench.core.machine.progress import track
from specbench.metrics.intervals import Estimate, columns
from specbench.metrics.latency import QUANTILES, median

T = TypeVar("T")


@dataclass(kw_only=True)
class TimedCalls:
    """What was timed of one call.

    Attributes:
        graph: whether all times are of replays.
        why_no_graph: why some are not.
        repeats: replays a round; 0 before the first.
        device_us: the times of each round.
        host_us: times of calls by the wall clock, of all rounds.
        floor_bytes: of each round.
    """

    graph: bool = False
    why_no_graph: str | None = None
    repeats: int = 0
    device_us: list[list[float]] = field(default_factory=list)
    host_us: list[float] = field(default_factory=list)
    floor_bytes: list[int] = field(default_factory=list)

    def add(self, captured: Captured, device_us: list[float], host_us: list[float], floor_bytes: int) -> None:
        """Adds a round."""
        self.graph = captured.graph is not None and (self.graph or not self.device_us)
        self.why_no_graph = self.why_no_graph or captured.why_not
        self.device_us.append(device_us)
        self.host_us += host_us
        self.floor_bytes.append(floor_bytes)

    def columns(self, bandwidth: float, seed: int) -> dict[str, Any]:
        """Its part of a row (tables.LatencyRow).

        Args:
            bandwidth: bytes a second, of the byte floor.
            seed: of the bootstrap.
        """
        samples = np.array(self.device_us)
        floor_us = 1e6 * float(np.mean(self.floor_bytes)) / bandwidth
        middle = median(samples, seed)
        ratio = Estimate(middle.value / floor_us, middle.low / floor_us, middle.high / floor_us)
        return {
            "graph": self.graph,
            "why_no_graph": self.why_no_graph,
            "rounds": len(samples),
            "replays": int(samples.size),
            **columns("median_us", middle),
            **{
                f"q{round(100 * q):02d}_us": float(value)
                for q, value in zip(QUANTILES, np.quantile(samples, QUANTILES), strict=True)
            },
            "eager_us": float(np.median(self.host_us)),
            "eager_q25_us": float(np.quantile(self.host_us, 0.25)),
            "eager_q75_us": float(np.quantile(self.host_us, 0.75)),
            "floor_bytes": float(np.mean(self.floor_bytes)),
            "floor_us": floor_us,
            **columns("ratio", ratio),
        }


def round_trip(cases: Sequence[T], rounds: int, budget: float) -> Iterator[tuple[int, T]]:
    """Each case with the number of the round, every second round backwards, so that what drifts meets all cases alike.

    Args:
        budget: seconds, after which only the first round is still completed.
    """
    steps = [(number, case) for number in range(rounds) for case in (cases if number % 2 == 0 else reversed(cases))]
    started = time.perf_counter()
    for number, case in track(steps, "timing"):
        if number == 0 or time.perf_counter() - started < budget:
            yield number, case
