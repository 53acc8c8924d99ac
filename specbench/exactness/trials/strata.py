"""Counts of calls by stratum of D, and the bounds that follow from them."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field

from specbench.exactness.inputs import STRATA, Stratum
from specbench.exactness.results import StratumRow
from specbench.exactness.statistics.power import CONFIDENCE, mean_at_most, share_at_most
from specbench.rules.agreement import TOLERANCE
from specbench.rules.rule import Rule


@dataclass
class Seen:
    """Counts of one stratum.

    Attributes:
        shares: of the requests of a call that are not the rule's, with the number of calls; for differing calls alone.
    """

    stratum: Stratum
    calls: int = 0
    requests: int = 0
    rows: int = 0
    refused: int = 0
    impossible: int = 0
    shares: Counter[float] = field(default_factory=Counter)
    differing: int = 0
    rounding: int = 0
    law_checked: int = 0
    law_wrong: int = 0
    no_form: int = 0
    largest_error: float = 0.0

    def add(self, other: Seen) -> None:
        for key, value in vars(other).items():
            if key == "largest_error":
                self.largest_error = max(self.largest_error, value)
            elif key != "stratum":
                setattr(self, key, getattr(self, key) + value)

    def row(self, rule: Rule | None, own_rule: bool, along: float | None, seed: int) -> StratumRow:
        """With bounds, each at 99% confidence.

        Args:
            rule: that calls were compared with; None if with none.
            own_rule: whether it is not one of this tree.
            along: bound by counts of cells, where there is one.
        """
        alpha = 1 - CONFIDENCE
        compared = rule is not None and self.calls > 0
        code = mean_at_most(self.shares, self.calls, alpha, seed) if compared else None
        rule_error = None
        if compared and own_rule and self.law_checked and not self.no_form:
            rule_error = min(1.0, TOLERANCE + share_at_most(self.law_wrong, self.law_checked, alpha))
        elif compared and not own_rule and rule is not None and rule.lossless:
            rule_error = 0.0
        return StratumRow(
            stratum=self.stratum.name,
            reason=self.stratum.reason,
            probability=self.stratum.probability,
            calls=self.calls,
            requests=self.requests,
            rows=self.rows,
            refused=self.refused,
            differing_calls=self.shares.total() if compared else None,
            differing=self.differing if compared else None,
            rounding=self.rounding if compared else None,
            structural=self.differing - self.rounding if compared else None,
            code=code,
            rule_checked=self.law_checked,
            rule_wrong=self.law_wrong,
            rule_largest=self.largest_error if self.law_checked else None,
            rule=rule_error,
            tv=None if code is None or rule_error is None else min(1.0, code + rule_error),
            along=along,
        )


def together(name: str, reason: str, parts: list[Seen]) -> Seen:
    whole = Seen(Stratum(name, reason, math.fsum(part.stratum.probability for part in parts), (2, 2), {}, {}))
    for part in parts:
        whole.add(part)
    return whole


def mean_over_d(bounds: dict[str, float]) -> float | None:
    """The mean of bounds over the strata of D, 1 for a stratum without one; None if there are none."""
    return math.fsum(stratum.probability * bounds.get(stratum.name, 1.0) for stratum in STRATA) if bounds else None
