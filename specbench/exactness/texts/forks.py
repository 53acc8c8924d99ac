"""At temperature 0, where do speculative and plain text part, and is it rounding?

Both are the target's argmax, so they are equal if arithmetic is exact. Matrix products of another shape (one token
against a block) round differently, and if two logits nearly tie, the argmax may change: the text then goes another way
without anything being wrong. The text up to the fork, scored in both shapes, tells that from a bug.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scipy import stats

NEAR_TIE, BUG = "near tie", "unexplained"


@dataclass(frozen=True)
class Fork:
    """Where the two texts of one prompt part; position and all after it are None if they are the same.

    Attributes:
        prompt, tokens: its name, and tokens decoded plainly.
        position: index in the continuation of the first differing token.
        plain_token, speculative_token: the two.
        plain_margin: logit of the plain token over the other's, scored token by token.
        speculative_margin: the same, scored in blocks of gamma + 1 tokens.
        logit_noise: the largest difference of any logit between the two scorings.
        cause: see cause_of.
    """

    prompt: str
    tokens: int
    position: int | None = None
    plain_token: int | None = None
    speculative_token: int | None = None
    plain_margin: float | None = None
    speculative_margin: float | None = None
    logit_noise: float | None = None
    cause: str | None = None


def cause_of(margins: Sequence[float], noise: float, most: float) -> str:
    """NEAR_TIE if rounding explains a fork, else BUG.

    Each text follows its own larger logit: an honest fork has margins of both signs, or of the noise's size. And the
    noise is rounding only up to ``most``: two passes that differ by more do not compute the same thing.
    """
    explained = margins[0] * margins[1] <= 0 or min(abs(margin) for margin in margins) <= 2 * noise
    return NEAR_TIE if explained and noise <= most else BUG


def headline(forks: Sequence[Fork]) -> str:
    """How many texts part, with 95% intervals (Clopper and Pearson), and why."""
    parted = [fork for fork in forks if fork.position is not None]
    interval = stats.binomtest(len(parted), len(forks)).proportion_ci(method="exact")
    # A text is followed up to its fork; what comes after is another text.
    followed = sum(fork.tokens if fork.position is None else fork.position + 1 for fork in forks)
    ties = sum(fork.cause == NEAR_TIE for fork in parted)
    rate = stats.binomtest(len(parted), max(followed, 1)).proportion_ci(method="exact")
    text = f"{len(parted)} of {len(forks)} texts part ({interval.low:.1%} to {interval.high:.1%}), one token in "
    text += f"{followed / len(parted):,.0f}" if parted else f"{1 / rate.high:,.0f} or more"
    if parted:
        text += (
            f" ({1 / rate.high:,.0f} to {1 / max(rate.low, 1e-12):,.0f}); {ties} at near ties, {len(parted) - ties} "
        )
        text += f"unexplained; largest margin at a fork {max(abs(fork.plain_margin or 0.0) for fork in parted):.3g}"
    return text
