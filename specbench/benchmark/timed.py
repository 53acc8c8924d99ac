"""What was measured of one call, or of one case of one verifier, as rounds add to it; the order of the rounds."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from specbench.benchmark.grid import CaseSpec
from specbench.benchmark.tables import LatencyRow, LatencySample
from specbench.benchmark.timer import Captured
from specbench.core.machine.progress import track
from specbench.metrics.intervals import Estimate, columns, median, ratio_of_medians

T = TypeVar("T")
QUANTILES = (0.05, 0.25, 0.75, 0.95)


@dataclass(kw_only=True)
class TimedCalls:
    """What was timed of one call.

    Attributes:
        graph: whether all times are of replays.
        why_no_graph: why some are not.
        repeats: replays a round; 0 before the first.
        host_us: times of calls by the wall clock, of all rounds.
    """

    graph: bool = False
    why_no_graph: str | None = None
    repeats: int = 0
    device_us: list[list[float]] = field(default_factory=list)
    host_us: list[float] = field(default_factory=list)
    floor_bytes: list[int] = field(default_factory=list)

    def add(self, captured: Captured, device_us: list[float], host_us: list[float], floor_bytes: int) -> None:
        self.graph = captured.graph is not None and (self.graph or not self.device_us)
        self.why_no_graph = self.why_no_graph or captured.why_not
        self.device_us.append(device_us)
        self.host_us += host_us
        self.floor_bytes.append(floor_bytes)

    def columns(self, bandwidth: float, seed: int) -> dict[str, Any]:
        """Its part of a row (tables.LatencyRow); ``bandwidth`` is in bytes a second, of the byte floor."""
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


@dataclass
class Measured(TimedCalls):
    """One case of one verifier, as rounds add to it.

    Attributes:
        skipped: why it is not timed; None if it is.
        plain_us: as device_us, with nothing left to penalise or ban; empty if there never was anything.
    """

    spec: CaseSpec
    skipped: str | None = None
    plain_us: list[list[float]] = field(default_factory=list)
    num_accepted: list[int] = field(default_factory=list)
    rounding: int = 0

    def row(self, base: CaseSpec, common: Mapping[str, Any], seed: int) -> LatencyRow:
        """Its row of latency.parquet.

        Args:
            base: the case that ``variant`` compares with.
            common: columns that the spec does not determine: of the run, the device and the verifier.
        """
        spec = self.spec
        numbers: Any = spec.sampling.numbers
        times = {} if self.skipped is not None else self._times(common["copy_bandwidth"], seed)
        return LatencyRow(
            variant=spec.variant(base),
            batch_size=spec.batch_size,
            vocabulary=spec.vocabulary,
            gamma=spec.gamma,
            dtype=spec.dtype,
            sampler=spec.sampler,
            **numbers,
            draft_probabilities=spec.draft_probabilities,
            shaping=spec.sampling.shaping_text or None,
            context=spec.context if spec.sampling.shaping else None,
            skipped=self.skipped,
            **common,
            **times,
        )

    def samples(self, case: int) -> Iterator[LatencySample]:
        """Its rows of latency_samples.parquet."""
        for number, times in enumerate(self.device_us):
            plain = self.plain_us[number] if self.plain_us else [None] * len(times)
            for pair in zip(times, plain, strict=True):
                yield LatencySample(case, number, *pair)

    def _times(self, bandwidth: float, seed: int) -> dict[str, Any]:
        drafted, accepted = self.spec.batch_size * self.spec.gamma * len(self.device_us), sum(self.num_accepted)
        decided = accepted + sum(count < self.spec.gamma for count in self.num_accepted)  # a rejection ends a block
        measured = {
            **self.columns(bandwidth, seed),
            "acceptance_rate": accepted / drafted if drafted else None,
            "token_acceptance": accepted / decided if decided else None,
            "checked": len(self.num_accepted),
            "rounding": self.rounding,
        }
        if self.plain_us:
            plain = np.array(self.plain_us)
            measured |= columns("plain_us", median(plain, seed))
            measured |= columns("times_plain", ratio_of_medians(np.array(self.device_us), plain, seed))
        return measured


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
