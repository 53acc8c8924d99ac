"""What a rule that is not lossless does: how far a step is from the target, and what that bought in acceptance."""

from __future__ import annotations

from dataclasses import dataclass

from specbench.exactness.enumeration.laws import rule_lengths
from specbench.exactness.evidence import JOINT, Evidence
from specbench.rules.token.formulas import RULE as TOKEN


@dataclass(frozen=True)
class RuleBiasRow:
    """One fixture.

    Attributes:
        fixture: its name.
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


def bias_rows(evidence: Evidence) -> list[RuleBiasRow]:
    """Every small fixture that was drawn on and whose steps can be completed to whole prefixes."""
    # What was located is the bias where the code does little else.
    errors = {bound.fixture: bound.located for bound in evidence.bounds if bound.located is not None and bound.least}
    dof = {row.fixture: row.dof for row in evidence.rows if row.test == JOINT}
    rows = []
    for name, tally in evidence.tallies.items():
        if not (tally.fixture.whole_prefix and tally.fixture.enumerable) or tally.fixture.name == "greedy":
            continue
        lengths = rule_lengths(TOKEN, tally.fixture).numpy()
        shares = tally.lengths().sum(axis=1) / tally.lengths().sum()
        token_rule = float(
            sum(share * (row * range(len(row))).sum() for share, row in zip(shares, lengths, strict=True))
        )
        noise = 0.4 * (dof.get(name, 0) / tally.draws) ** 0.5  # half the mean of |normal| a cell, E|z| = 0.8
        rows.append(RuleBiasRow(name, errors.get(name), tally.observed_tv(), noise, tally.mean_accepted(), token_rule))
    return rows
