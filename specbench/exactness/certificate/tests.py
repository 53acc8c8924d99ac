"""Every test that a certificate names, in plain words."""

from __future__ import annotations

from dataclasses import dataclass

from specbench.exactness.evidence import (
    ACCEPTANCE,
    CLASSES,
    EXTREMES,
    FORM,
    JOINT,
    LAST_FIRST,
    LAW,
    NEIGHBOURS,
    PAIRED,
    SUCCESSIVE,
    TWINS,
)


@dataclass(frozen=True)
class Explained:
    """What a test compares, and which bug usually makes it fail."""

    compares: str
    usual_cause: str


EXPLAINED = {
    FORM: Explained(
        "whether each result is a prefix of the request's draft, one token of the vocabulary that the target allows, "
        "and padding (-1)",
        "an index that is off by one, another request's row, truncation that is not applied",
    ),
    EXTREMES: Explained(
        "the same with uniforms at the very ends of their range, 2^-53 and 1 - 2^-53, for every draft",
        "<= where < is meant, so that u = 0 accepts a token of probability 0; a sum that u near 1 overruns",
    ),
    JOINT: Explained(
        "how often each token was emitted after each prefix with the target's probabilities (a likelihood-ratio test "
        "of the joint distribution of a whole step)",
        "a wrong row, a wrong residual, an accept test that is too kind, random numbers used twice",
    ),
    PAIRED: Explained(
        "emitted with expected tokens, in requests where they differ: over many requests both should have each token "
        "equally often (bets on each token)",
        "a bias in few requests: rare seeds, a place in the batch, a narrow strip of a uniform",
    ),
    ACCEPTANCE: Explained(
        "how many drafted tokens were accepted with what its rule accepts; no test of losslessness",
        "another rule than the one it names, or a draft that is worse than it should be",
    ),
    CLASSES: Explained(
        "how the emitted tokens are spread over 8 cells of equal probability along orders of the ids (by p, by q, by "
        "p / q, by number, by lane), beside the target (bets on each cell)",
        "a tile of the vocabulary that is never drawn from, an id that overflows, sums that lose a long tail",
    ),
    LAW: Explained(
        "the distribution of each token of a step by the formulas of a rule of one's own with the target's, in closed "
        "form",
        "a residual that does not fit the thresholds, or the other way round",
    ),
    SUCCESSIVE: Explained(
        "the first tokens of two successive steps of a request, which should be independent",
        "a generator that is seeded again at every step",
    ),
    LAST_FIRST: Explained(
        "the last token of a step and the first of the next, which should be independent",
        "a uniform that two steps share",
    ),
    NEIGHBOURS: Explained(
        "the first tokens of two requests of a batch, 1, 2, 4, ... places apart, which should be independent",
        "one seed for the whole batch, or for the requests that a tile of a kernel handles",
    ),
    TWINS: Explained(
        "the first tokens of two requests whose seeds or positions differ in one bit, which should be independent",
        "a seed or a position that is cut to fewer bits, so that both draw the same numbers",
    ),
}
