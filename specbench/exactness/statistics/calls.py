"""Requests of small fixtures come in calls of the verifier, which may go wrong as a whole: calls are the unit here."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool
from torch import Tensor

from specbench.exactness.statistics.power import mean_at_most

# Log-uniform sizes of calls, up to the first number, hold the second share of requests; one call holds all others.
OF_COMPARED, OF_COUNTED = (2**9, 1 / 8), (2**12, 1.0)
_STEP = 8  # shares are rounded up to powers of 2^(1/8), so that few of them differ
MODELS = 6  # of a fixture, one after the other
_FIRST_MODEL = 31 / 32  # weight of a fixture's first model; each later one has half of what is left


def call_sizes(requests: int, seed: int, sizes: tuple[int, float] = OF_COMPARED) -> list[int]:
    """Returns the requests of each call, log-uniform but for the last, which holds the others.

    A verifier may go wrong in few calls as a whole, so that calls have to be many, or in large calls alone.

    Args:
        sizes: OF_COMPARED, or OF_COUNTED where requests are counted and compared with nothing.
    """
    chance, sizes_drawn, (most, share) = random.Random(seed), [], sizes
    while sum(sizes_drawn) < share * requests:
        sizes_drawn.append(min(int(min(most, requests) ** chance.random()), requests - sum(sizes_drawn)))
    rest = requests - sum(sizes_drawn)
    return [*sizes_drawn, rest] if rest else sizes_drawn


@dataclass
class CallCounts:
    """Calls of one fixture since its model was made.

    Attributes:
        shares: of the requests of a call that came out otherwise, with the number of calls; for calls with any.
        phase: how many models there have been.
    """

    calls: int = 0
    shares: Counter[float] = field(default_factory=Counter)
    phase: int = 1

    def add(self, differ: Bool[Tensor, " B"], sizes: Sequence[int]) -> None:
        """Counts calls; ``differ`` says which of their requests, in order, came out otherwise."""
        self.calls += len(sizes)
        if not bool(differ.any()):
            return
        of_call = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
        counts = torch.bincount(of_call[differ.cpu()], minlength=len(sizes)).tolist()
        for count, size in zip(counts, sizes, strict=True):
            if count:
                self.shares[min(1.0, 2.0 ** (math.ceil(_STEP * math.log2(count / size)) / _STEP))] += 1


@dataclass(frozen=True)
class CallBound:
    """What calls of small fixtures together leave for requests that come out otherwise.

    Attributes:
        calls: of the verifier; differing: those with a request that came out otherwise.
        code: upper bound on the share of a call's requests that come out otherwise, in the mean over these calls.
    """

    calls: int
    differing: int
    code: float


def call_bound(counts: Iterable[CallCounts], alpha: float, seed: int) -> CallBound | None:
    """Returns the bound of fixtures together; None without a call.

    Which model a fixture has depends on what came out. So each model has a weight, all of them add up to less than 1,
    and a bound may be wrong as often as alpha times the weights of the models that it is of.

    Args:
        alpha: how often it may be wrong, with any models.
    """
    shares, calls = Counter[float](), 0
    for tally in counts:
        calls += tally.calls
        shares.update(tally.shares)
        alpha *= _FIRST_MODEL if tally.phase == 1 else (1 - _FIRST_MODEL) * 0.5 ** (tally.phase - 1)
    return CallBound(calls, shares.total(), mean_at_most(shares, calls, alpha, seed)) if calls else None
