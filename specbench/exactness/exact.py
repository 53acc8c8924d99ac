"""The exact tier of one verifier: what its rule does by its formula, what its code does with injected uniforms."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from specbench.errors import ArgumentError
from specbench.exactness.differential import ROUNDING, compare
from specbench.exactness.enumeration import LAWS, rule_error
from specbench.exactness.fixtures import Fixture, greedy_fixture, small_fixtures
from specbench.exactness.injection import injected_error, takes_injected_uniforms
from specbench.exactness.search import search
from specbench.verifiers import Verifier
from specbench.verifiers.block import BlockVerifier
from specbench.verifiers.masked import MaskedVerifier

GRIDS = ("token", "block")  # rules that read ACCEPT at each offset and EMIT at 0, on which injection.py has a grid
EXACT = 1e-12  # total variation up to which a lossless verifier's joint may differ from the target's
REFERENCES: dict[str, Verifier] = {"token": MaskedVerifier(), "block": BlockVerifier()}


@dataclass(frozen=True, kw_only=True)
class ExactRow:
    """One fixture without Monte Carlo; None is what cannot be had.

    Attributes:
        fixture: its name.
        rule_error: total variation of the rule's joint from the target's, by its closed form.
        injected_error: of the code's joint, on the grid of its rule's thresholds.
        margin: how near to every threshold the code still decides as its rule does.
        searched_tv: of the code's joint, its thresholds found by search; for rules without a grid, and where code that
            is right at the middle of the boxes misplaces a threshold by more than rounding.
        searched_missed: upper confidence bound on the probability of what the search did not foresee, by which
            searched_tv can be off.
        agreement_requests, rounding, structural: requests put before it and its rule's reference, and how often the two
            parted by rounding and otherwise; where the code draws from its seeds by itself.
    """

    fixture: str
    rule_error: float | None = None
    injected_error: float | None = None
    margin: float | None = None
    searched_tv: float | None = None
    searched_missed: float | None = None
    agreement_requests: int | None = None
    rounding: int | None = None
    structural: int | None = None

    @property
    def error(self) -> float | None:
        """The code's total variation where it is known: by search, or on the grid if no threshold is out of place."""
        if self.searched_tv is not None:
            return self.searched_tv
        return None if self.misplaced else self.injected_error

    @property
    def misplaced(self) -> bool:
        """Whether the code is not of its rule's grid: wrong inside a box, or a threshold off by more than rounding."""
        found = self.injected_error is not None and self.margin is not None
        return found and (self.margin > ROUNDING or self.injected_error > EXACT)

    @property
    def lossless(self) -> bool | None:
        """Whether the joint is the target's; None where the method cannot tell."""
        if self.error is None:
            return None
        if self.error <= EXACT:
            return True
        return False if self.error - (self.searched_missed or 0.0) > EXACT else None


def exact_tier(verifier: Verifier, agreement_requests: int, seed: int, device: torch.device) -> list[ExactRow]:
    """Every small fixture.

    Args:
        agreement_requests: requests a fixture put before a verifier that takes no injected uniforms and its reference.
    """
    rows = []
    for fixture in (*small_fixtures(), greedy_fixture()):
        try:
            row = _row(verifier, fixture.to(device), agreement_requests, seed)
            if row is not None:
                rows.append(row)
        except ArgumentError:  # the statistical tier says which fixtures a verifier refuses, and why
            rows.append(ExactRow(fixture=fixture.name))
    return rows


def _row(verifier: Verifier, fixture: Fixture, requests: int, seed: int) -> ExactRow | None:
    """None where the fixture's steps cannot be enumerated, and there is no reference to hold the verifier against."""
    rule = rule_error(verifier.rule, fixture) if verifier.rule in LAWS and fixture.whole_prefix else None
    injectable = not hasattr(verifier, "draft_tokens") and takes_injected_uniforms(verifier, fixture)
    if injectable or hasattr(verifier, "draft_tokens"):
        return _enumerated(verifier, fixture, rule, injectable) if fixture.whole_prefix else None
    if verifier.rule not in REFERENCES or requests == 0:
        return ExactRow(fixture=fixture.name, rule_error=rule) if fixture.whole_prefix else None
    found = compare(REFERENCES[verifier.rule], verifier, fixture, requests, seed, fixture.p.device)
    return ExactRow(
        fixture=fixture.name,
        rule_error=rule,
        agreement_requests=found.requests,
        rounding=found.count("rounding"),
        structural=found.count("structural"),
    )


def _enumerated(verifier: Verifier, fixture: Fixture, rule: float | None, injectable: bool) -> ExactRow:
    """On the grid of the rule that it names; where it has none or the code is not of it, by search."""
    row = ExactRow(fixture=fixture.name, rule_error=rule)
    if injectable and rule is not None and verifier.lossless and verifier.rule in GRIDS:
        found = injected_error(verifier, fixture)
        row = replace(row, injected_error=found.error, margin=found.margin)
        # Right at the middle of every box is not enough: a threshold out of place shows beside it.
        if not row.misplaced:
            return row
    found = search(verifier, fixture)
    return row if found is None else replace(row, searched_tv=found.tv, searched_missed=found.missed)
