"""What was put before a verifier: calls and requests by each property of their arguments."""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool
from torch import Tensor

from specbench.core.types import LogitRows
from specbench.exactness.inputs.call import Call
from specbench.exactness.inputs.draw import WRITTEN

# Smallest members of the cells of numbers; the last number is a bound.
VOCABULARIES = (2, 65, 1025, 4097, 32_000, 40_961, 65_537, 131_073, 262_145)
BATCHES = (1, 2, 5, 17, 65, 129, 513)
GAMMAS = (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 17, 33, 65)
TEMPERATURES = (0.05, 0.5, 1.0, 2.0)


@dataclass(frozen=True)
class CensusRow:
    """One cell.

    Attributes:
        property, value: of the arguments.
        calls: with a request in the cell.
        requests: in the cell.
    """

    property: str
    value: str
    calls: int
    requests: int


@dataclass
class Census:
    """Counts by cell."""

    calls: Counter[tuple[str, str]] = field(default_factory=Counter)
    requests: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, call: Call) -> None:
        """Counts one call."""
        size, target, draft = len(call.counts), call.target, call.draft
        of_call = {
            "vocabulary": whole(call.vocabulary, VOCABULARIES),
            "requests in the call": whole(size, BATCHES),
            "dtype of the target": _dtype(target.logits),
            "dtype of the draft": "no rows" if draft.rows is None else _dtype(draft.rows.logits),
            "padded": "yes" if draft.padded else "no",
            "layout": layout(target),
            "normaliser of the target": "unknown" if target.log_normalizer is None else "known",
        }
        first = draft.first_row + torch.arange(size, device=call.counts.device)
        columns = [call.counts, call.streams.seeds, call.streams.positions, target.cutoff[first] > -torch.inf]
        masked = any(kind != "none" for kind in call.options["mask"])  # or else a pass over the logits is spared
        nothing = torch.zeros_like(call.counts)
        columns.append(banned(target.select(first)).any(dim=1) if masked else nothing)
        counts, seeds, positions, cutoffs, infinite = torch.stack(columns).tolist()
        of_requests = {
            "draft tokens": [whole(count, GAMMAS) for count in counts],
            "temperature": [temperature_cell(temperature) for temperature in target.temperature[first].tolist()],
            "truncated": ["yes" if cut else "no" for cut in cutoffs],
            "tokens at -inf": ["yes" if masked_row else "no" for masked_row in infinite],
            "seed": ["0 to 100,000" if seed <= WRITTEN else "above" for seed in seeds],
            "position": ["0 to 100,000" if position <= WRITTEN else "above" for position in positions],
        }
        for name, values in ({name: [value] * size for name, value in of_call.items()} | of_requests).items():
            for value, count in Counter(values).items():
                self.calls[name, value] += 1
                self.requests[name, value] += count

    def merge(self, other: Census) -> None:
        """Counts what another census counted."""
        self.calls.update(other.calls)
        self.requests.update(other.requests)

    def rows(self) -> Iterator[CensusRow]:
        """The cells, in order."""
        names = list(dict.fromkeys(name for name, _ in self.calls))
        for cell in sorted(self.calls, key=lambda cell: (names.index(cell[0]), _order(cell[1]))):
            yield CensusRow(*cell, self.calls[cell], self.requests[cell])


def whole(value: int, starts: tuple[int, ...]) -> str:
    """The cell of a whole number."""
    i = bisect.bisect_right(starts, value) - 1
    low, high = starts[i], starts[i + 1] - 1
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def temperature_cell(value: float) -> str:
    """The cell of a temperature."""
    if value in (0.0, 1.0):
        return f"{value:g}"
    starts = ("0.05 to 0.5", "0.5 to 1", "1 to 2", "2 to 5")
    return starts[max(0, bisect.bisect_right(TEMPERATURES, value) - 1)]


def layout(rows: LogitRows) -> str:
    """How rows lie in memory."""
    vocabulary, stride = rows.logits.shape[1], rows.logits.stride(0)
    if stride != vocabulary:
        return "every second row" if stride == 2 * vocabulary else "wider"
    return "offset" if rows.logits.storage_offset() else "contiguous"


def banned(rows: LogitRows) -> Bool[Tensor, "n V"]:
    """Tokens at -inf, and those that a mask removes."""
    return rows.with_mask_applied().logits.isinf()


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _order(value: str) -> tuple[float, str]:
    digits = value.split(" ", maxsplit=1)[0].replace(",", "")
    return (float(digits), value) if digits.replace(".", "").isdigit() else (-1.0, value)
