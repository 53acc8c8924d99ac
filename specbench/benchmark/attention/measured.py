"""What was measured of one way in one case, and its row of attention.parquet."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from specbench.benchmark.attention.cases import AttentionSpec
from specbench.benchmark.attention.check import tolerance
from specbench.benchmark.tables import ATTENTION_SCHEMA, AttentionSample
from specbench.benchmark.timed import Timed, with_interval
from specbench.metrics.latency import ratio_of_medians


@dataclass
class MeasuredWay(Timed):
    """One way in one case, as rounds add to it.

    Attributes:
        case: its number.
        code: what ours ran; None for other ways.
        skipped: why it is not timed; None if it is.
        wrong: what was wrong with what it gave; None if nothing was.
        error: the largest one so far.
    """

    case: int
    spec: AttentionSpec
    way: str
    code: str | None = None
    skipped: str | None = None
    wrong: str | None = None
    error: float | None = None

    @property
    def timed(self) -> bool:
        """Whether it has times that mean something."""
        return self.skipped is None and self.wrong is None and bool(self.device_us)

    def note(self, error: float, when: str) -> bool:
        """Notes the error of a result, and whether it may be timed.

        Args:
            when: what gave the result: "the first call", for instance.
        """
        self.error = max(error, self.error or 0.0)
        if error > tolerance(self.spec):
            self.wrong = f"{when} is off by {error:.1e}, and rounding explains {tolerance(self.spec):.0e}"
        return self.wrong is None

    def row(self, common: Mapping[str, Any], ours: MeasuredWay | None, seed: int) -> dict[str, Any]:
        """Its row of attention.parquet.

        Args:
            common: columns of the run and the device.
            ours: what our way took in the same case; None if that was not timed.
            seed: of the bootstrap.
        """
        row = dict.fromkeys(ATTENTION_SCHEMA.names) | {
            **dataclasses.asdict(self.spec),
            **{name: getattr(self, name) for name in ("case", "way", "code", "skipped", "wrong", "error")},
            "tokens": self.spec.tokens,
            "tolerance": tolerance(self.spec),
            **common,
        }
        if not self.timed:
            return row
        row |= self.columns(common["copy_bandwidth"], seed)
        if ours is not None and ours is not self:
            pair = (np.array(each.device_us) for each in (self, ours))
            row |= with_interval("times_ours", ratio_of_medians(*pair, seed))
        return row

    def samples(self) -> Iterator[AttentionSample]:
        """Its rows of attention_samples.parquet."""
        for number, times in enumerate(self.device_us if self.timed else []):
            for microseconds in times:
                yield AttentionSample(self.case, self.way, number, microseconds)
