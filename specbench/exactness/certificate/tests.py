"""What every test that a certificate names compares, in plain words."""

from __future__ import annotations

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

COMPARES = {
    FORM: (
        "whether each result is a prefix of the request's draft, one token of the vocabulary that the target "
        "allows, and padding (-1)"
    ),
    EXTREMES: "the same with uniforms at the very ends of their range, 2^-53 and 1 - 2^-53, for every draft",
    JOINT: (
        "how often each token was emitted after each prefix with the target's probabilities (a likelihood-ratio "
        "test of the joint distribution of a whole step)"
    ),
    PAIRED: (
        "emitted with expected tokens, in requests where they differ: over many requests both should have each "
        "token equally often (bets on each token)"
    ),
    ACCEPTANCE: "how many drafted tokens were accepted with what its rule accepts; no test of losslessness",
    CLASSES: (
        "how the emitted tokens are spread over 8 cells of equal probability along orders of the ids (by p, by q, "
        "by p / q, by number, by lane), beside the target (bets on each cell)"
    ),
    LAW: (
        "the distribution of each token of a step by the formulas of a rule of one's own with the target's, in "
        "closed form"
    ),
    SUCCESSIVE: "the first tokens of two successive steps of a request, which should be independent",
    LAST_FIRST: "the last token of a step and the first of the next, which should be independent",
    NEIGHBOURS: "the first tokens of two requests of a batch, 1, 2, 4, ... places apart, which should be independent",
    TWINS: "the first tokens of two requests whose seeds or positions differ in one bit, which should be independent",
}
