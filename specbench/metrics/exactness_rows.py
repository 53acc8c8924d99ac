"""The typed rows of protocol=exactness that reports read, and of its comparisons; reading them needs no PyTorch."""

from dataclasses import dataclass

CELLS, BOUNDS, BIAS, SENSITIVITY = "joint_cells.parquet", "bounds.parquet", "bias.parquet", "sensitivity.parquet"
LOCATION = "location"  # the row of what was located, beside those of the tests


@dataclass(frozen=True)
class CellRow:
    """A whole step of the longest draft on a small fixture: the target's probability of it, and its share of draws."""

    fixture: str
    sequence: str
    prob: float
    share: float
    draws: int


@dataclass(frozen=True, kw_only=True)
class BoundRow:
    """How far from the target a step can be on one small fixture, requests with seeds of their own.

    The certificate's page explains its columns (certificate/page.md).

    Attributes:
        rule_error: None where its rule has no formulas or there are too many sequences.
        located: of a rule without a model, its error; None where neither is known.
        draws: requests since the model was made; all that were counted, if there is none.
        structural: None if the rule that it names has no formulas.
        impure: of those that differ from a model, how many do not if the same uniforms are given to it again: it was
            not the uniforms that made them.
        tv: takes requests of one call to come out otherwise independently of each other; ``Evidence.calls`` does not.
    """

    fixture: str
    method: str
    rule_error: float | None
    located: float | None
    boxes: int | None
    proved: bool
    draws: int
    differing: int
    rounding: int
    structural: int | None = None
    explained: int
    impure: int
    hidden: float | None
    tv: float | None
    least: float


@dataclass(frozen=True)
class RuleBiasRow:
    """One fixture.

    Attributes:
        tv: total variation a step with the code's thresholds located; None where that says nothing.
        observed_tv: of the empirical joint; noise included, so an over-estimate of a small bias.
        noise_tv: about what an exact rule shows after as many draws.
        accepted: drafted tokens accepted a step.
        token_rule: what token verification accepts, the most that a lossless rule can that decides token by token.
    """

    fixture: str
    tv: float | None
    observed_tv: float
    noise_tv: float
    accepted: float
    token_rule: float


@dataclass(frozen=True)
class SensitivityRow:
    """What a test saw of a verifier.

    Attributes:
        fixture, test: as in exactness.results.Row; ``location`` is what was located of its thresholds.
        p_value: 0 or 1 for what was located.
        rejected_at: steps after which it was caught; None if it was not.
        needed: steps after which it would be caught with the power asked for; None if nothing was seen.
        gates: whether the test can reject the verifier, and not only the name of its rule.
    """

    fixture: str
    test: str
    draws: int
    p_value: float
    rejected_at: int | None
    needed: float | None
    gates: bool
