"""Acceptance by coin, at rates that are given: to study speed without a draft that would reach them. Not real.

A drafted token is accepted with the given probability, whatever it is and whatever the target thinks of it. Behind the
accepted ones stands a token of the target's own. So a step does what a real one does and takes as long, while the text
is nobody's: neither the target's nor the draft's, and a stop token may end it anywhere. Results say so in their column
``synthetic``. vLLM's synthetic rejection sampling is the same idea.

With the rate r, a block of n drafted tokens accepts r + r^2 + ... + r^n of them on average. An acceptance length L is
reached by the rate at which this is L - 1, found for each block by its own n. A block of fewer than L - 1 tokens, as at
the end of a text, is accepted whole.
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
from specbench.core.errors import ConfigError
from specbench.core.rng import Stream, Streams
from specbench.core.types import Draft, LogitRows, Verification
from specbench.sampling import sample
from specbench.verifiers import batched


class SyntheticVerifier:
    """Batched PyTorch.

    Args:
        acceptance_rate: the probability that a token is accepted if those before it are, 0 to 1; or a list of them by
            place in the block, the last of which holds for all places behind it.
        acceptance_length: in place of the rate, tokens a step on average: those accepted and the one behind them.

    Attributes:
        least_gamma: tokens to draft a step, without which that length cannot be reached.
    """

    rule = "synthetic"
    lossless = False
    synthetic = True
    takes_padded = True

    def __init__(self, acceptance_rate: object = 0.8, acceptance_length: object = None):
        several = isinstance(acceptance_rate, Sequence) and not isinstance(acceptance_rate, str) and acceptance_rate
        rates = acceptance_rate if several else [acceptance_rate]
        self.rates = tuple(_number("acceptance_rate", each, 0.0, 1.0) for each in rates)
        given = acceptance_length is not None
        self.length = _number("acceptance_length", acceptance_length, 1.0, math.inf) if given else None
        self.least_gamma = math.ceil((self.length or 1) - 1)
        self._tables: dict[tuple[int, torch.device], Tensor] = {}

    def verify(self, draft: Draft, target: LogitRows, streams: Streams) -> Verification:
        """See :class:`specbench.verifiers.Verifier`."""
        arguments.check(draft, target, streams)
        width = draft.max_draft_tokens
        rates = self._table(width, draft.token_ids.device)[draft.num_draft_tokens]
        accepted = draft.drafted & (streams.uniform(Stream.ACCEPT)[:, :width] < rates)
        num_accepted = accepted.long().cumprod(dim=1).sum(dim=1)
        requests = torch.arange(len(num_accepted), device=num_accepted.device)
        rows = target.select(draft.first_row + requests + num_accepted)
        return batched.assemble(draft, num_accepted, sample(rows, streams.uniform(Stream.EMIT)[:, 0]))

    def _table(self, width: int, device: torch.device) -> Float64[Tensor, "counts width"]:
        """The rate at each place of a block, by the tokens of the block. Kept: to make it waits for a GPU."""
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
    """The rate at which a block of ``count`` drafted tokens gives so many tokens on average; 1 if none is enough."""
    if acceptance_length >= count + 1:
        return 1.0
    return float(brentq(lambda rate: math.fsum(rate**i for i in range(count + 1)) - acceptance_length, 0.0, 1.0))


def _number(name: str, value: object, low: float, high: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high or value == math.inf:
        bounds = f"Use a number from {low:g} to {high:g}." if high < math.inf else f"Use a number from {low:g}."
        raise ConfigError(f"verifier.{name}", value, "not such a number", bounds)
    return float(value)
