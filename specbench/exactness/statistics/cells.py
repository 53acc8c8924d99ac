"""Tokens of a large vocabulary in eight cells of equal probability, along several orders of the vocabulary.

Let F be the distribution function of p along some order of the tokens. F(x-) + w p(x) with w uniform is uniform on
(0, 1) if x follows p (Rosenblatt 1952), so the eight parts of (0, 1) are cells of probability 1/8 in every row, and
rows that are all different can be counted together. The orders are those that mistakes depend on: p, q, p / q, the
number of the token, and its lane (the number modulo 32).
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64, Shaped
from torch import Tensor

from specbench.core.types import Verification
from specbench.exactness.inputs import Call
from specbench.exactness.statistics.bets import DifferenceBets

ORDERS, CELLS, LANES = 5, 8, 32
BANDS, _LONGEST = (0, 1, 2, 3, 8), 2**10  # first places of each band, and the end of the last
NUMBERS = len(BANDS) * ORDERS * 3
_DENSE = 2**22  # probabilities held side by side


def transforms(
    call: Call, result: Verification, requests: Int64[Tensor, " m"]
) -> tuple[Float64[Tensor, "m width orders"], Bool[Tensor, "m width"]]:
    """The value in (0, 1) of every emitted token in each order, and where there is a token.

    Args:
        result: well formed, every token inside the vocabulary.
    """
    accepted, width = result.num_accepted[requests], result.token_ids.shape[1]
    places = torch.arange(width, device=accepted.device)
    there = places <= accepted[:, None]
    which, place = there.nonzero().unbind(1)
    request, token = requests[which], result.token_ids[requests][which, place]
    generator = torch.Generator(accepted.device).manual_seed(call.number)
    w = torch.rand(there.shape, generator=generator, dtype=torch.float64, device=accepted.device)[which, place]
    cells = torch.zeros((*there.shape, ORDERS), dtype=torch.float64, device=accepted.device)
    for part in torch.arange(len(request), device=accepted.device).split(max(1, _DENSE // call.vocabulary)):
        own = (request[part], place[part], token[part], w[part])
        cells[which[part], place[part]] = _transforms(call, *own).clamp(0, 1)
    return cells, there


def _transforms(call: Call, request: Tensor, place: Tensor, token: Tensor, w: Tensor) -> Float64[Tensor, "m orders"]:
    path = call.path
    p = q = call.p[path.p_rows[request, place]]
    if call.q is not None and len(call.q):
        drawn = call.q[path.q_rows[request, place.clamp(max=path.q_rows.shape[1] - 1)]]
        q = torch.where((place < call.counts[request])[:, None], drawn, p)
    ratio = torch.where(q > 0, p / torch.where(q > 0, q, 1.0), torch.inf)
    ids = torch.arange(call.vocabulary, device=p.device)
    scores = (p, q, ratio, ids.expand_as(p), (ids % LANES).expand_as(p))
    return torch.stack([transform(p, score, token, w) for score in scores], 1)


def transform(
    p: Float64[Tensor, "m V"], score: Shaped[Tensor, "m V"], token: Int64[Tensor, " m"], w: Float64[Tensor, " m"]
) -> Float64[Tensor, " m"]:
    """F(x-) + w p(x) of each token x, with F along the order of the scores; equal scores count as one token."""
    own = score.gather(1, token[:, None])
    return torch.where(score < own, p, 0.0).sum(dim=1) + w * torch.where(score == own, p, 0.0).sum(dim=1)


def smooth(call: Call, result: Verification, requests: Int64[Tensor, " m"]) -> Float64[Tensor, "m numbers"]:
    """Numbers of each request, from -1 to 1, whose means are 0 if its tokens are the target's.

    Legendre polynomials of the values, as in Neyman's smooth test (Skandinavisk Aktuarietidskrift 20, 1937), in the
    mean over the places of each band.
    """
    return _smooth(*transforms(call, result, requests), call.counts[requests])


def _smooth(
    values: Float64[Tensor, "m width orders"], there: Bool[Tensor, "m width"], counts: Int64[Tensor, " m"]
) -> Float64[Tensor, "m numbers"]:
    x = 2 * values - 1
    polynomials = torch.stack([x, (3 * x**2 - 1) / 2, (5 * x**3 - 3 * x) / 2], 3) * there[:, :, None, None]
    by_place = polynomials.flatten(2)
    places = torch.arange(by_place.shape[1], device=x.device)
    means = []
    for first, end in itertools.pairwise((*BANDS, _LONGEST)):
        own = (places >= first) & (places < end)
        number = (counts + 1).clamp(max=end) - first  # of the places that the request has in the band
        means.append(by_place[:, own].sum(dim=1) / number.clamp(min=1)[:, None])
    return torch.cat(means, 1)


@dataclass(frozen=True)
class TokenCells:
    """The emitted tokens of one call.

    Attributes:
        counts: int64 [ORDERS, CELLS], tokens in each cell of each order.
        numbers: float64 [requests, NUMBERS], of ``smooth``.
    """

    counts: np.ndarray
    numbers: np.ndarray


def token_cells(call: Call, result: Verification, requests: Int64[Tensor, " m"]) -> TokenCells:
    """The cells of the tokens of some requests, whose results are well formed."""
    values, there = transforms(call, result, requests)
    cell = (values * CELLS).long().clamp(0, CELLS - 1)
    index = (cell[there] + CELLS * torch.arange(ORDERS, device=cell.device)).flatten()
    numbers = _smooth(values, there, call.counts[requests])
    counts = torch.bincount(index, minlength=ORDERS * CELLS).view(ORDERS, CELLS)
    return TokenCells(counts.cpu().numpy(), numbers.cpu().numpy())


class CellCounts:
    """Counts of emitted tokens by cell, and bets on requests."""

    def __init__(self) -> None:
        self.counts = np.zeros((ORDERS, CELLS), dtype=np.int64)
        self._bets = DifferenceBets(NUMBERS, 1.0, torch.device("cpu"))

    def add(self, cells: TokenCells) -> None:
        self.counts += cells.counts
        self._bets.add(torch.from_numpy(cells.numbers))

    @property
    def tokens(self) -> int:
        """All that were counted: each is in one cell of each order."""
        return int(self.counts[0].sum())

    @property
    def p_value(self) -> float:
        """Of the bets; 1 / the largest wealth."""
        return self._bets.p_value

    def bound(self, confidence: float) -> float:
        """Upper bound on the total variation of a token's cell in any one order, in the mean over tokens.

        By the Azuma-Hoeffding inequality for each union of cells.
        """
        if not self.tokens:
            return 1.0
        alpha = (1 - confidence) / ORDERS
        off = np.abs(self.counts / self.tokens - 1 / CELLS)
        noise = math.sqrt((CELLS * math.log(2) - math.log(alpha)) / (2 * self.tokens))
        return min(1.0, 0.5 * float(off.sum(axis=1).max()) + noise)
