"""Greedy texts of an engine, with and without speculation: where they part, and whether rounding can be the reason.

Both are the target's argmax. Passes of another shape round otherwise, which can change the argmax where two tokens
nearly tie. Rounding is shown if the plain engine itself takes the other token when it is asked in another way. It is
ruled out if the plain engine gives its own token so much probability that no other comes near.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import optimize

ITSELF, CHUNKING, NO_ROUNDING, BY_CHECKPOINT, UNKNOWN, NO_IDS = (
    "the plain engine forks from itself there",
    "the plain engine takes the other token if it reads the same token ids as a prompt",
    "no rounding: the plain token is far ahead",
    "no rounding: by the checkpoint the plain token is far ahead",
    "cannot tell",
    "cannot tell: the engine takes no token ids, and the same text may be other tokens",
)
CONFIDENCE = 0.99  # of the bound on the rate of forks
MARGIN = 1.0  # nats by which the plain token has to lead for rounding to be ruled out


@dataclass(frozen=True)
class EngineFork:
    """Where the greedy texts of a prompt part; all but the first three are None if they do not.

    Attributes:
        way: the text that is compared with the plain one, such as "speculative" or "plain again".
        tokens: up to the fork and with it, or all if there is none.
        position: of the first token that differs, from 1.
        least_margin: nats by which the plain token leads the other at least, from its log-probability alone, or by the
            checkpoint if the cause says so.
    """

    prompt: str
    way: str
    tokens: int
    position: int | None = None
    least_margin: float | None = None
    cause: str | None = None


def parting(one: Sequence[int | str], other: Sequence[int | str]) -> int | None:
    """The index of the first difference of two texts, which may be one's end; None if they are the same."""
    same = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), None)
    return same if same is not None or len(one) == len(other) else min(len(one), len(other))


def least_margin(logprobs: Sequence[float] | None, place: int) -> float | None:
    """Nats by which a token leads every other at least: log p - log(1 - p). None if log-probabilities say nothing,
    such as those of engines that return 0 for every greedy token."""
    if logprobs is None or place >= len(logprobs) or all(logprob > -1e-6 for logprob in logprobs):
        return None
    log_p = min(logprobs[place], -1e-12)
    return log_p - math.log(-math.expm1(log_p))


def per_thousand(forks: Sequence[EngineFork]) -> tuple[float, float]:
    """Returns forks a thousand tokens that were followed, and an upper bound on that rate at 99% confidence.

    Texts are independent, and their tokens are not: some prompts part early, and others never. If the rate is r, the
    mean over texts of 1 - (1 if it parts) + r (its tokens) is 1, and no text has less than 0. So the product over texts
    reaches 100 in at most 1% of runs, whatever the texts are (Markov). Rates at which it does are excluded.

    Args:
        forks: of texts of different prompts.
    """
    tokens = np.array([fork.tokens for fork in forks])
    parted = np.array([fork.position is not None for fork in forks])

    def excess(rate: float) -> float:
        """By how much the logarithm of the product is above that of 100; it grows with the rate."""
        return float(np.log(1 - parted + rate * tokens).sum()) + math.log(1 - CONFIDENCE)

    high = optimize.brentq(excess, 1e-9, 1.0) if excess(1.0) > 0 else 1.0
    return 1000 * float(parted.sum() / max(tokens.sum(), 1)), 1000 * high
