"""Acceptance by coin, at rates that are given: to study speed without a draft that would reach them. Not real.

A drafted token is accepted with the given probability, whatever it is and whatever the target thinks of it. Behind the
accepted ones stands a token of the target's own. So a step does all that a real one does, and takes the time of a real
one, while the text is nobody's: neither the target's nor the draft's. A text that ends at a stop token ends elsewhere
than the target's would. vLLM's synthetic rejection sampling does the same; results say it in their column ``synthetic``.

With the rate r for each token, a block of g drafted tokens accepts (r + r^2 + ... + r^g) of them on average. An
acceptance length L is reached by the rate at which this is L - 1. Blocks that the end of a text cuts short accept less.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from scipy.optimize import brentq

from specbench import arguments
from specbench.errors import ConfigError
from specbench.rng import Stream, Streams
from specbench.sampling import sample
from specbench.types import Draft, LogitRows, Verification
from specbench.verifiers import batched


class SyntheticVerifier:
    """Batched PyTorch.

    Args:
        gamma: of the run, tokens drafted a step.
        acceptance_rate: the probability that a token is accepted if those before it are, 0 to 1; or a list of them by
            place in the block, the last of which holds for all places behind it.
        acceptance_length: tokens a step on average, the accepted ones and the one behind them, 1 to gamma + 1. One of
            the two is to be given.
    """

    rule = "synthetic"
    lossless = False
    synthetic = True
    takes_padded = True

    def __init__(self, gamma: int, acceptance_rate: Any = None, acceptance_length: Any = None):
        if (acceptance_rate is None) == (acceptance_length is None):
            given = "neither it nor" if acceptance_rate is None else "both it and"
            problem, remedy = f"{given} verifier.acceptance_length is given", "Give one of the two."
            raise ConfigError("verifier.acceptance_rate", acceptance_rate, problem, remedy)
        if acceptance_length is None:
            several = isinstance(acceptance_rate, Sequence) and not isinstance(acceptance_rate, str)
            rates = [_rate(each) for each in (acceptance_rate if several else [acceptance_rate])]
            if not rates:
                raise ConfigError("verifier.acceptance_rate", acceptance_rate, "an empty list", "Give a rate a place.")
        else:
            rates = [rate_for(acceptance_length, gamma)]
        self.rates = (*rates, *[rates[-1]] * max(gamma - len(rates), 0))

    def verify(self, draft: Draft, target: LogitRows, streams: Streams) -> Verification:
        """See :class:`specbench.verifiers.Verifier`. Drafts may be of more than gamma tokens."""
        arguments.check(draft, target, streams)
        width = draft.max_draft_tokens
        uniforms = streams.uniform(Stream.ACCEPT)[:, :width]
        rates = (*self.rates, *[self.rates[-1]] * width)[:width]
        # Filled with each number: a tensor made of a list would have to be copied to a GPU.
        accepted = draft.drafted.clone()
        for place, rate in enumerate(rates):
            accepted[:, place] &= uniforms[:, place] < rate
        num_accepted = accepted.long().cumprod(dim=1).sum(dim=1)
        batch = num_accepted.new_zeros(len(num_accepted)).fill_(1).cumsum(0) - 1
        rows = target.select(draft.first_row + batch + num_accepted)
        return batched.assemble(draft, num_accepted, sample(rows, streams.uniform(Stream.EMIT)[:, 0]))


def rate_for(acceptance_length: Any, gamma: int) -> float:
    """The rate at which gamma drafted tokens give this many tokens a step on average.

    Raises:
        ConfigError: a length that no rate gives.
    """
    number = isinstance(acceptance_length, int | float) and not isinstance(acceptance_length, bool)
    if not number or not 1 <= acceptance_length <= gamma + 1:
        problem = f"not in 1 to gamma + 1 = {gamma + 1}"
        raise ConfigError("verifier.acceptance_length", acceptance_length, problem, "Use a number in it.")
    if acceptance_length in (1, gamma + 1):
        return float(acceptance_length > 1)
    missing = lambda rate: math.fsum(rate**i for i in range(gamma + 1)) - acceptance_length  # noqa: E731
    return float(brentq(missing, 0.0, 1.0))


def _rate(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ConfigError("verifier.acceptance_rate", value, "not a probability", "Use numbers from 0 to 1.")
    return float(value)
