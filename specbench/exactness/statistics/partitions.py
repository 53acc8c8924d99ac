"""Tokens of a large vocabulary in classes: how are they spread over the ids, beside the target?

No test of few draws sees every bias over 150,000 tokens, so classes are made along what mistakes depend on: p, q,
p / q, the block of ids that a kernel's tile or a lane of a warp reads, and several random ones, which no bias can be
aligned with. Each class is bet on (bets.py), and what all of them leave possible is bounded.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from specbench.exactness.fixtures import Fixture
from specbench.exactness.statistics.bets import ClassBets
from specbench.exactness.steps import Steps, table_rows
from specbench.types import PADDING

QUANTILES, BLOCKS_OF_IDS, LANES, HASHES, HASHED = 8, 16, 32, 4, 64
NAMED_SIZES = (QUANTILES, QUANTILES, QUANTILES, BLOCKS_OF_IDS, LANES)  # by p, q, p / q, blocks of ids, lanes of ids
NAMED, NAMED_CLASSES = len(NAMED_SIZES), sum(NAMED_SIZES)


class Partitions:
    """The classes of every token at every row of a fixture, and counts of what was emitted.

    Args:
        fixture: on the device where tokens are.
        seed: of the random classes.
    """

    def __init__(self, fixture: Fixture, seed: int):
        self.fixture, device = fixture, fixture.p.device
        generator = torch.Generator().manual_seed(seed % 2**63)
        ids = torch.arange(fixture.vocabulary, device=device)
        p, rows = fixture.p, len(fixture.p)
        q = torch.cat([fixture.q, p[len(fixture.q) :]]) if len(fixture.q) < rows else fixture.q
        classes = [_quantiles(score, p) for score in (p, q, torch.where(q > 0, p / q, torch.inf))]
        classes.append((ids * BLOCKS_OF_IDS // fixture.vocabulary).expand(rows, -1))
        classes.append((ids % LANES).expand(rows, -1))
        for _ in range(HASHES):
            classes.append(torch.randint(HASHED, p.shape, generator=generator, dtype=torch.int16).to(device))
        self.sizes = [*NAMED_SIZES, *(HASHED,) * HASHES]
        first = [sum(self.sizes[:i]) for i in range(len(self.sizes))]
        self._slices = [slice(start, start + size) for start, size in zip(first, self.sizes, strict=True)]
        # int16: nine numbers a token of a table are much memory
        self._classes = torch.stack([each.to(torch.int16) + start for each, start in zip(classes, first, strict=True)])
        self.probs = torch.zeros((rows, sum(self.sizes)), dtype=torch.float64, device=device)
        for each in self._classes:
            self.probs.scatter_add_(1, each.long(), p)
        self.counts = torch.zeros(self.probs.shape, dtype=torch.int64, device=device)
        self.reached = torch.zeros(rows, dtype=torch.int64, device=device)
        self._bets = ClassBets(self.probs)

    def add(self, steps: Steps) -> None:
        """Counts the emitted tokens."""
        rows, tokens = steps.rows[steps.emitted], steps.tokens[steps.emitted]
        self.reached += torch.bincount(rows, minlength=len(self.reached))
        width = self.counts.shape[1]
        cells = (rows * width + self._classes[:, rows, tokens]).flatten()
        self.counts += torch.bincount(cells, minlength=self.counts.numel()).view_as(self.counts)
        self._bets.look(self.counts, self.reached)

    def excess(self, base: Int64[Tensor, " m"], tokens: Int64[Tensor, "m width"]) -> Float64[Tensor, "m width classes"]:
        """Each token's classes (of the partitions that are not random), less what the target has of them there.

        Args:
            base: where each request's variant begins in the tables.
            tokens: PADDING behind the last; nothing is there in excess.
        """
        rows, there = table_rows(self.fixture, base, tokens), (tokens != PADDING).double()
        found = -self.probs[rows][:, :, :NAMED_CLASSES] * there[:, :, None]
        for each in self._classes[:NAMED]:
            found.scatter_add_(2, each[rows, tokens.clamp(min=0)].long()[:, :, None], there[:, :, None])
        return found

    @property
    def p_value(self) -> float:
        """Of the bets on classes."""
        return self._bets.p_value

    def upper_bounds(self, confidence: float) -> tuple[float, float, float]:
        """Upper bounds on the mean total variation of a token, all at once at the confidence: (along, few, all).

        ``along``: of the coarse distribution over the classes of any one partition, by the Azuma-Hoeffding inequality
        for each union of its classes. ``few``, ``all``: of the whole distribution, if the bias lies on at most 100
        tokens of a row, or anywhere. A random partition into K classes has, in the mean over partitions, a squared
        distance of (1 - 1/K) times that of the whole distribution, and at least half of that for one of several with
        the probability that Chebyshev's inequality gives; the distance seen is off by the noise that Pinelis' bound for
        vectors allows (Annals of Probability 22, 1994); and total variation is at most half of the square root of the
        number of tokens times the distance, rows together by Cauchy and Schwarz.
        """
        tokens = int(self.reached.sum())
        if tokens == 0:
            return 1.0, 1.0, 1.0
        # Chebyshev: half of the mean is missed by one with probability 8 / (K - 1) at most, by all with its power.
        missed = (8 / (HASHED - 1)) ** HASHES
        alpha = (1 - confidence - missed) / (len(self.sizes) + HASHES)
        assert alpha > 0
        excess = (self.counts.double() - self.reached.double()[:, None] * self.probs).sum(dim=0) / tokens
        along = max(
            0.5 * float(excess[part].abs().sum()) + math.sqrt((size * math.log(2) - math.log(alpha)) / (2 * tokens))
            for part, size in zip(self._slices, self.sizes, strict=True)
        )
        noise = math.sqrt(4 * math.log(2 / alpha) / tokens)
        hashed = [float(excess[part].square().sum().sqrt()) + noise for part in self._slices[-HASHES:]]
        distance = max(hashed) * math.sqrt(2 / (1 - 1 / HASHED))
        rows = int((self.reached > 0).sum())
        few, every = (0.5 * distance * math.sqrt(rows * m) for m in (100, self.fixture.vocabulary))
        return min(1.0, along), min(1.0, few), min(1.0, every)


def _quantiles(score: Float64[Tensor, "rows V"], p: Float64[Tensor, "rows V"]) -> Int64[Tensor, "rows V"]:
    """Classes of about equal mass, in the order of a score."""
    order = score.float().argsort(dim=1)
    mass = p.gather(1, order).cumsum(dim=1)
    place = (mass * QUANTILES).long().clamp(max=QUANTILES - 1)
    return torch.empty_like(place).scatter_(1, order, place)
