"""Bets against a verifier: sequential tests that hold whenever one looks, and for any number of draws.

A bet multiplies what was staked by a factor whose mean is 1 if the verifier emits the target's distribution. What has
grown to W proves a bias with a false alarm of at most 1 / W, however often one looked (Ville's inequality; Ramdas et
al., "Game-theoretic statistics and safe anytime-valid inference", Statistical Science 38, 2023). Stakes are spread
evenly over bets of several sizes, in both directions, on every cell, so that nobody has to know the bias beforehand.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from jaxtyping import Float64
from torch import Tensor

_STAKES = {1.0: 0.98} | dict.fromkeys((0.5, 0.25, 0.1, 0.05, 0.02), 0.004)  # of bets, with their weights
SIZES = (0.5, 0.2, 0.08, 0.03, 0.01)  # of bets, as shares of the largest that cannot go bankrupt


class DifferenceBets:
    """Bets on differences of mean 0 that are rarely anything else.

    Args:
        cells: how many numbers each difference consists of.
        largest: bound on their absolute values.
    """

    def __init__(self, cells: int, largest: float, device: torch.device):
        sizes = torch.tensor([sign * size / largest for size in SIZES for sign in (1, -1)], dtype=torch.float64)
        self._sizes, self._log = sizes.to(device), torch.zeros((len(sizes), cells), dtype=torch.float64, device=device)
        self._peak = 0.0

    def add(self, differences: Float64[Tensor, "m cells"]) -> None:
        """Independent draws' differences; those that are all 0 may be left out."""
        for i, size in enumerate(self._sizes):
            self._log[i] += torch.log1p(size * differences).sum(dim=0)
        self._peak = max(self._peak, _mean_log(self._log))

    @property
    def p_value(self) -> float:
        """1 / the largest wealth so far."""
        return min(1.0, math.exp(-self._peak))


def _mean_log(log: Float64[Tensor, "bets cells"]) -> float:
    """The log of the mean wealth."""
    return float(log.flatten().logsumexp(dim=0)) - math.log(log.numel())


def mean_at_most(shares: Mapping[float, int], count: int, alpha: float) -> float:
    """Upper bound on the mean of a quantity from 0 to 1, wrong with probability alpha at most.

    Bets that the mean is below m multiply a wealth by 1 + c (m - s) / (1 - m) for each s that is drawn. Averaged over
    several stakes c, its mean is at most 1 if m is the mean, so that m is excluded where it is above 1 / alpha
    (Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting", JRSS B 86, 2024). Where all
    are 0, this is the bound of Clopper and Pearson at 0.98 alpha.

    Args:
        shares: how often each value other than 0 was drawn.
        count: of independent draws, those of 0 included.
    """
    zeros = count - sum(shares.values())

    def wealth(m: float) -> float:
        """The log of it."""
        drawn = [(0.0, zeros), *shares.items()]
        logs = [
            math.log(weight) + math.fsum(n * _log1p(stake * (m - s) / (1 - m)) for s, n in drawn if n)
            for stake, weight in _STAKES.items()
        ]
        largest = max(logs)
        return largest + math.log(math.fsum(math.exp(value - largest) for value in logs))

    low, high = 0.0, 1.0  # wealth grows with m
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if middle < 1 and wealth(middle) > -math.log(alpha) else (middle, high)
    return high


def _log1p(x: float) -> float:
    return math.log1p(x) if x > -1 else -math.inf
