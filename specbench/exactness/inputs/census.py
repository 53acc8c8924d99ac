"""What was put before a verifier: calls and requests by what was drawn for them, as the tables of D name it."""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from specbench.exactness.inputs.call import Call

# Smallest members of the cells of numbers; the last number is a bound.
VOCABULARIES = (2, 65, 1025, 4097, 32_000, 40_961, 65_537, 131_073, 262_145)
BATCHES = (1, 2, 5, 17, 65, 129, 513)
GAMMAS = (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 17, 33, 65)


@dataclass(frozen=True)
class CensusRow:
    """One cell.

    Attributes:
        property: a choice of D (distribution.CHOICES), or a number of tokens or requests.
        value: the option, or the range of the number.
        calls: with a request in the cell.
    """

    property: str
    value: str
    calls: int
    requests: int


@dataclass
class Census:
    calls: Counter[tuple[str, str]] = field(default_factory=Counter)
    requests: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, call: Call) -> None:
        size = len(call.counts)
        cells = {
            "tokens of the vocabulary": whole(call.vocabulary, VOCABULARIES),
            "requests in the call": whole(size, BATCHES),
            "draft tokens": [whole(count, GAMMAS) for count in call.counts.tolist()],
        }
        for name, drawn in (cells | call.options).items():
            for value, count in Counter([drawn] * size if isinstance(drawn, str) else drawn).items():
                self.calls[name, value] += 1
                self.requests[name, value] += count

    def merge(self, other: Census) -> None:
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


def _order(value: str) -> tuple[float, str]:
    digits = value.split(" ", maxsplit=1)[0].replace(",", "")
    return (float(digits) if digits.isdigit() else -1.0, value)
