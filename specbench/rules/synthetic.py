"""Acceptance at given rates, to study speed without a draft that reaches them. The texts mean nothing.

A drafted token is accepted with the given probability, whatever p and q are. The token after the accepted ones is drawn
from the target. A step therefore does the work of a real one and takes as long, but the text follows neither the
target's nor the draft's distribution, and a stop token may end it anywhere. Results have the column ``synthetic`` for
this. vLLM's synthetic rejection sampling is the same idea.

With the rate r, a block of n drafted tokens accepts r + r^2 + ... + r^n of them on average. An acceptance length L
needs the rate at which this is L - 1, which is solved for each n. A block of fewer than L - 1 tokens, as at the end of
a text, is accepted whole.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import torch
from jaxtyping import Float64
from scipy.optimize import brentq
from torch import Tensor

from specbench.core import arguments
from specbench.core.checks import check_number
from specbench.core.rng import Stream, Streams
from specbench.core.types import Draft, LogitRows, Verification
from specbench.rules import batched
from specbench.sampling import sample


class SyntheticVerifier:
    """Batched PyTorch.

    Args:
        acceptance_rate: the probability, 0 to 1, that a token is accepted if all before it are; or a list of
            probabilities by offset in the block, whose last one holds for all further offsets.
        acceptance_length: in place of the rate, the mean number of tokens a step: the accepted ones and one more.

    Attributes:
        least_gamma: the lowest gamma that reaches this length.
    """

    rule = "synthetic"
    lossless = False
    synthetic = True
    takes_padded = True

    def __init__(self, acceptance_rate: object = 0.8, acceptance_length: object = None):
        several = isinstance(acceptance_rate, Sequence) and not isinstance(acceptance_rate, str) and acceptance_rate
        rates = acceptance_rate if several else [acceptance_rate]
        key, remedy = "verifier.acceptance_rate", "Use a number from 0 to 1."
        self.rates = tuple(float(check_number(key, rate, "[0, 1]", remedy)) for rate in rates)
        self.length = None
        if acceptance_length is not None:
            key, remedy = "verifier.acceptance_length", "Use a number from 1."
            self.length = float(check_number(key, acceptance_length, "[1, inf)", remedy))
        self.least_gamma = math.ceil((self.length or 1) - 1)
        self._tables: dict[tuple[int, torch.device], Tensor] = {}

    def verify(self, draft: Draft, target: LogitRows, streams: Streams) -> Verification:
        arguments.check(draft, target, streams)
        width = draft.max_draft_tokens
        rates = self._table(width, draft.token_ids.device)[draft.num_draft_tokens]
        accepted = draft.drafted & (streams.uniform(Stream.ACCEPT)[:, :width] < rates)
        num_accepted = accepted.long().cumprod(dim=1).sum(dim=1)
        rows = target.select(batched.target_row_after(draft, num_accepted))
        return batched.assemble(draft, num_accepted, sample(rows, streams.uniform(Stream.EMIT)[:, 0]))

    def _table(self, width: int, device: torch.device) -> Float64[Tensor, "counts width"]:
        """Returns the rate at each offset, by the length of the block. Cached, because making it waits for a GPU."""
        if (width, device) not in self._tables:
            rows = [self._rates(count, width) for count in range(width + 1)]
            self._tables[width, device] = torch.tensor(rows, dtype=torch.float64, device=device)
        return self._tables[width, device]

    def _rates(self, count: int, width: int) -> list[float]:
        if self.length is not None:
            return [rate_for(self.length, count)] * width
        return [self.rates[min(place, len(self.rates) - 1)] for place in range(width)]


@functools.cache
def rate_for(acceptance_length: float, count: int) -> float:
    """Returns the rate at which ``count`` drafted tokens give this mean number of tokens; 1 if no rate is enough."""
    if acceptance_length >= count + 1:
        return 1.0
    return float(brentq(lambda rate: math.fsum(rate**i for i in range(count + 1)) - acceptance_length, 0.0, 1.0))
