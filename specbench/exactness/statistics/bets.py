"""Bets against a verifier: sequential tests that hold whenever one looks, and for any number of draws.

A bet multiplies what was staked by a factor whose mean is 1 if the verifier emits the target's distribution. What has
grown to W proves a bias with a false alarm of at most 1 / W, however often one looked (Ville's inequality; Ramdas et
al., "Game-theoretic statistics and safe anytime-valid inference", Statistical Science 38, 2023). Stakes are spread
evenly over bets of several sizes, in both directions, on every cell, so that the bias need not be known beforehand.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

SIZES = (0.5, 0.2, 0.08, 0.03, 0.01)  # of bets, as shares of the largest that cannot go bankrupt


class DifferenceBets:
    """Bets on differences of mean 0 that are rarely anything else.

    Args:
        cells: how many numbers each difference consists of.
        largest: bound on their absolute values.

    Attributes:
        draws: differences that were bet on.
    """

    def __init__(self, cells: int, largest: float, device: torch.device):
        sizes = torch.tensor([sign * size / largest for size in SIZES for sign in (1, -1)], dtype=torch.float64)
        self._sizes, self._log = sizes.to(device), torch.zeros((len(sizes), cells), dtype=torch.float64, device=device)
        self.draws, self._peak = 0, 0.0

    def add(self, differences: Float64[Tensor, "m cells"]) -> None:
        """Independent draws' differences; those that are all 0 may be left out."""
        self.draws += len(differences)
        for i, size in enumerate(self._sizes):
            self._log[i] += torch.log1p(size * differences).sum(dim=0)
        log_mean = float(self._log.flatten().logsumexp(dim=0)) - math.log(self._log.numel())
        self._peak = max(self._peak, log_mean)

    @property
    def p_value(self) -> float:
        """1 / the largest wealth so far."""
        return min(1.0, math.exp(-self._peak))


def log_mean_wealth(log_wealth: np.ndarray, axis: int) -> np.ndarray:
    """The logarithm of the mean wealth of bets that each start with 1, along an axis."""
    return np.logaddexp.reduce(log_wealth, axis=axis) - math.log(log_wealth.shape[axis])


def rejected_at(log_wealth: Float64[np.ndarray, " n"], false_alarm: float) -> int | None:
    """Draws after which the wealth first reaches 1 / ``false_alarm``; None if it never does."""
    reached = np.flatnonzero(log_wealth >= -math.log(false_alarm))
    return int(reached[0]) + 1 if len(reached) else None
