"""What was measured of one case of one verifier, and its row of latency.parquet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from specbench.benchmark.grid import CaseSpec
from specbench.benchmark.tables import LATENCY_SCHEMA, LatencySample
from specbench.metrics.intervals import Estimate
from specbench.metrics.latency import QUANTILES, median, ratio_of_medians


@dataclass
class Measured:
    """One case of one verifier, as rounds add to it.

    Attributes:
        skipped: why it is not timed; None if it is.
        repeats: replays a round; 0 before the first.
        device_us: the times of each round.
        plain_us: the same with nothing left to penalise or ban; empty if there never was anything.
        host_us: times of calls by the wall clock, of all rounds.
    """

    spec: CaseSpec
    skipped: str | None = None
    graph: bool = False
    why_no_graph: str | None = None
    repeats: int = 0
    device_us: list[list[float]] = field(default_factory=list)
    plain_us: list[list[float]] = field(default_factory=list)
    host_us: list[float] = field(default_factory=list)
    floor_bytes: list[int] = field(default_factory=list)
    num_accepted: list[int] = field(default_factory=list)
    rounding: int = 0

    def row(self, base: CaseSpec, common: Mapping[str, Any], seed: int) -> dict[str, Any]:
        """Its row of latency.parquet.

        Args:
            base: the case that ``variant`` compares with.
            common: columns that the spec does not determine: of the run, the device and the verifier.
            seed: of the bootstrap.
        """
        spec = self.spec
        row = dict.fromkeys(LATENCY_SCHEMA.names) | {
            "variant": spec.variant(base),
            **{axis: getattr(spec, axis) for axis in ("batch_size", "vocabulary", "gamma", "dtype", "sampler")},
            **spec.sampling.numbers,
            "draft_probabilities": spec.draft_probabilities,
            "shaping": spec.sampling.shaping_text or None,
            "context": spec.context if spec.sampling.shaping else None,
            "skipped": self.skipped,
            **common,
        }
        return row if self.skipped is not None else row | self._times(common["copy_bandwidth"], seed)

    def samples(self, case: int) -> Iterator[LatencySample]:
        """Its rows of latency_samples.parquet."""
        for number, times in enumerate(self.device_us):
            plain = self.plain_us[number] if self.plain_us else [None] * len(times)
            for pair in zip(times, plain, strict=True):
                yield LatencySample(case, number, *pair)

    def _times(self, bandwidth: float, seed: int) -> dict[str, Any]:
        samples = np.array(self.device_us)
        drafted = self.spec.batch_size * self.spec.gamma * len(samples)
        return {
            "graph": self.graph,
            "why_no_graph": self.why_no_graph,
            **time_columns(samples, self.host_us, self.floor_bytes, bandwidth, seed),
            "acceptance_rate": sum(self.num_accepted) / drafted if drafted else None,
            "token_acceptance": self._token_acceptance(),
            "checked": len(self.num_accepted),
            "rounding": self.rounding,
            **self._against_plain(samples, seed),
        }

    def _against_plain(self, samples: np.ndarray, seed: int) -> dict[str, float]:
        if not self.plain_us:
            return {}
        plain = np.array(self.plain_us)
        times = ratio_of_medians(samples, plain, seed)
        return with_interval("plain_us", median(plain, seed)) | with_interval("times_plain", times)

    def _token_acceptance(self) -> float | None:
        """Accepted tokens over those that were decided on one by one: a rejection ends a block."""
        accepted = sum(self.num_accepted)
        decided = accepted + sum(count < self.spec.gamma for count in self.num_accepted)
        return accepted / decided if decided else None


def time_columns(
    samples: np.ndarray, host_us: Sequence[float], floor_bytes: Sequence[int], bandwidth: float, seed: int
) -> dict[str, float | int]:
    """The columns of what was timed, beside its byte floor.

    Args:
        samples: microseconds [rounds, replays].
        host_us: of calls by the wall clock.
        floor_bytes: of each round.
        bandwidth: bytes a second.
        seed: of the bootstrap.
    """
    floor_us = 1e6 * float(np.mean(floor_bytes)) / bandwidth
    middle = with_interval("median_us", median(samples, seed))
    return {
        "rounds": len(samples),
        "replays": int(samples.size),
        **middle,
        **{
            f"q{round(100 * q):02d}_us": float(value)
            for q, value in zip(QUANTILES, np.quantile(samples, QUANTILES), strict=True)
        },
        "eager_us": float(np.median(host_us)),
        "eager_q25_us": float(np.quantile(host_us, 0.25)),
        "eager_q75_us": float(np.quantile(host_us, 0.75)),
        "floor_bytes": float(np.mean(floor_bytes)),
        "floor_us": floor_us,
        **{name.replace("median_us", "ratio"): value / floor_us for name, value in middle.items()},
    }


def with_interval(name: str, estimate: Estimate) -> dict[str, float]:
    """An estimate as three columns."""
    return {name: estimate.value, f"{name}_low": estimate.low, f"{name}_high": estimate.high}
