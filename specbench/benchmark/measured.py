"""What was measured of one case of one verifier, and its row of latency.parquet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from specbench.benchmark.grid import CaseSpec
from specbench.benchmark.tables import LatencyRow, LatencySample
from specbench.benchmark.timed import TimedCalls
from specbench.metrics.intervals import columns
from specbench.metrics.latency import median, ratio_of_medians


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
            seed: of the bootstrap.
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
