"""Counts of calls by stratum of D, and the bounds that follow from them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from scipy import stats

from specbench.exactness.evidence import StratumRow
from specbench.exactness.inputs import Stratum
from specbench.exactness.statistics.power import CONFIDENCE
from specbench.rules.agreement import TOLERANCE
from specbench.rules.rule import Rule

_STAKES = {1.0: 0.98} | dict.fromkeys((0.5, 0.25, 0.1, 0.05, 0.02), 0.004)  # of bets, with their weights


@dataclass
class Seen:
    """Counts of one stratum.

    Attributes:
        shares: of the requests of a call that are not the rule's, with the number of calls; for calls with any.
    """

    stratum: Stratum
    calls: int = 0
    requests: int = 0
    rows: int = 0
    refused: int = 0
    impossible: int = 0
    differing_calls: int = 0
    shares: Counter[float] = field(default_factory=Counter)
    differing: int = 0
    rounding: int = 0
    law_checked: int = 0
    law_wrong: int = 0
    no_form: int = 0
    largest_error: float = 0.0

    def add(self, other: Seen) -> None:
        """Counts what another one counted."""
        for key, value in vars(other).items():
            if key == "largest_error":
                self.largest_error = max(self.largest_error, value)
            elif key != "stratum":
                setattr(self, key, getattr(self, key) + value)

    def row(self, rule: Rule | None, own_rule: bool, along: float | None) -> StratumRow:
        """With bounds, each at 99% confidence.

        Args:
            rule: that calls were compared with; None if with none.
            own_rule: whether it is not one of this tree.
            along: bound by counts of cells, where there is one.
        """
        alpha = 1 - CONFIDENCE
        compared = rule is not None and self.calls > 0
        code = mean_at_most(self.shares, self.calls, alpha) if compared else None
        rule_error = None
        if compared and own_rule and self.law_checked and not self.no_form:
            rule_error = min(1.0, TOLERANCE + most(self.law_wrong, self.law_checked, alpha))
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
            differing_calls=self.differing_calls if compared else None,
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
    whole = Seen(Stratum(name, reason, math.fsum(each.stratum.probability for each in parts), (2, 2), {}, {}))
    for part in parts:
        whole.add(part)
    return whole


def most(failures: int, trials: int, alpha: float) -> float:
    """Upper bound on a probability by Clopper and Pearson, wrong with probability alpha at most."""
    return float(stats.beta.isf(alpha, failures + 1, max(trials - failures, 1e-9)))


def mean_at_most(shares: Mapping[float, int], count: int, alpha: float) -> float:
    """Upper bound on the mean of a quantity from 0 to 1, wrong with probability alpha at most.

    Bets that the mean is below m multiply a wealth by 1 + c (m - s) / (1 - m) for each s that is drawn. Averaged over
    several stakes c, its mean is at most 1 if m is the mean, so that m is excluded where it is above 1 / alpha
    (Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting", JRSS B 86, 2024). Where all
    are 0, this is the bound of Clopper and Pearson at 0.98 alpha.

    Args:
        shares: how often each value other than 0 was drawn.
        count: of independent draws, those of 0 included.
    """
    zeros = count - sum(shares.values())

    def wealth(m: float) -> float:
        """The log of it."""
        drawn = [(0.0, zeros), *shares.items()]
        logs = [
            math.log(weight) + math.fsum(n * _log1p(stake * (m - s) / (1 - m)) for s, n in drawn if n)
            for stake, weight in _STAKES.items()
        ]
        largest = max(logs)
        return largest + math.log(math.fsum(math.exp(each - largest) for each in logs))

    low, high = 0.0, 1.0  # wealth grows with m
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if middle < 1 and wealth(middle) > -math.log(alpha) else (middle, high)
    return high


def _log1p(x: float) -> float:
    return math.log1p(x) if x > -1 else -math.inf


def mean(parts: list[Seen], bounds: dict[str, float]) -> float | None:
    """The mean of bounds over strata by their probability; None if there are none."""
    if not bounds:
        return None
    weights = {one.stratum.name: one.stratum.probability for one in parts}
    return math.fsum(weights[name] * bounds.get(name, 1.0) for name in weights) / math.fsum(weights.values())
