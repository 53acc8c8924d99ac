"""The ratios that acceptance metrics are, by their formulas; definitions.py says whose each is.

A step log has a line a verification and request (results.StepRow). For step s: d_s tokens drafted
(num_draft_tokens), a_s of them accepted (num_accepted, before the end of the text cut the block), e_s emitted
(num_emitted, at most a_s + 1). N steps; n of them drafted (d > 0); gamma is the setting. A tree drafts more tokens than
it could accept: d counts them in sums, and if d is compared with a position, with a, e or gamma, the depth of the tree
(draft_depth) stands for it. What tells definitions apart:

- whether the recovered or bonus token counts (a + 1 or a);
- whether steps that drafted nothing, and drafts cut short by a length limit, are in the denominator;
- whether a block that holds the end of the text counts as verified (a + 1) or as emitted (e);
- whether steps are pooled or requests averaged.

A ratio here is what its numerator and its denominator count in each step. Both are summed over all steps, or over those
of each request. ``None`` is a ratio that the log leaves undefined. All values are tokens a step, or shares from 0 to 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.optimize import brentq

from specbench.metrics.theory import expected_tokens

Value = float | None
Counted = np.ndarray | int
OVER_REQUESTS = "mean over requests of "
JOINT, CONDITIONAL = "#{a>=i} / #{d>=i}", "#{a>=i} / #{d>=i, a>=i-1}"
FULL_DRAFTS = "1 + mean of a where d = gamma"
ALPHA = f"(1 - alpha^(gamma+1)) / (1 - alpha) = {FULL_DRAFTS}"


@dataclass(frozen=True)
class StepLog:
    """d, a, e and depth of every step, the request of each step as a number from 0, and the gamma of the run."""

    drafted: np.ndarray
    depth: np.ndarray
    accepted: np.ndarray
    emitted: np.ndarray
    request: np.ndarray
    gamma: int

    @staticmethod
    def of(steps: pd.DataFrame, gamma: int) -> StepLog:
        """From the columns of results.StepRow, or of DecodedBatch.step_log, which numbers the samples of a prompt."""
        names = ("num_draft_tokens", "num_accepted", "num_emitted")
        drafted, accepted, emitted = (steps[name].to_numpy(dtype=np.int64) for name in names)
        # Logs from before there were trees do not say the depth apart.
        known = steps["draft_depth"].fillna(steps["num_draft_tokens"]) if "draft_depth" in steps else drafted
        depth = np.asarray(known, dtype=np.int64)
        request = steps.groupby([name for name in ("prompt", "sample") if name in steps], sort=False).ngroup()
        return StepLog(drafted, depth, accepted, emitted, request.to_numpy(), gamma)

    @property
    def drafting(self) -> np.ndarray:
        """1 for steps that drafted at all, 0 for others."""
        return (self.drafted > 0).astype(np.int64)

    @property
    def full(self) -> np.ndarray:
        """1 for steps whose draft has gamma tokens, 0 for those that were cut short by a length limit."""
        return (self.depth == self.gamma).astype(np.int64)


RATIOS: dict[str, Callable[[StepLog], tuple[Counted, Counted]]] = {
    # Lengths: tokens a step
    "(Σa + N) / N": lambda log: (log.accepted + 1, 1),
    "Σa / N": lambda log: (log.accepted, 1),
    "Σe / N": lambda log: (log.emitted, 1),
    "1 + Σa / #{d>0}": lambda log: (log.accepted + log.drafting, log.drafting),
    FULL_DRAFTS: lambda log: ((log.accepted + 1) * log.full, log.full),
    # Rates: a share of what was drafted, or of what a step could emit
    "Σa / Σd": lambda log: (log.accepted, log.drafted),
    "Σa / (N gamma)": lambda log: (log.accepted, log.gamma),
    "(Σe - N) / (N gamma)": lambda log: (log.emitted - 1, log.gamma),
    "(Σa + N) / (N (gamma + 1))": lambda log: (log.accepted + 1, log.gamma + 1),
    "(Σa + #{d>0}) / (#{d>0} (gamma + 1))": lambda log: (log.accepted + log.drafting, log.drafting * (log.gamma + 1)),
    "(Σa + #{d>0}) / (Σd + #{d>0})": lambda log: (log.accepted + log.drafting, log.drafted + log.drafting),
    "Σa / Σ(a + [a<d])": lambda log: (log.accepted, log.accepted + (log.accepted < log.depth)),
    "#{e=d+1, d>0} / #{d>0}": lambda log: (log.drafting * (log.emitted == log.depth + 1), log.drafting),
}
BY_POSITION: dict[str, Callable[[StepLog, int], tuple[Counted, Counted]]] = {  # i = 1..gamma in the block
    JOINT: lambda log, i: (log.accepted >= i, log.depth >= i),
    "#{a>=i} / #{d>0}": lambda log, i: (log.accepted >= i, log.drafting),
    "#{e>i} / N": lambda log, i: (log.emitted > i, 1),
    CONDITIONAL: lambda log, i: (log.accepted >= i, (log.depth >= i) & (log.accepted >= i - 1)),
    "#{e>i} / #{e>=i}": lambda log, i: (log.emitted > i, log.emitted >= i),
}


def ratio(log: StepLog, formula: str) -> Value:
    """A ratio of RATIOS, or its mean over requests, where those with a denominator of 0 are left out; or ALPHA."""
    if formula == ALPHA:
        return _implied_alpha(log)
    top, bottom = RATIOS[formula.removeprefix(OVER_REQUESTS)](log)
    units = log.request if formula.startswith(OVER_REQUESTS) else np.zeros_like(log.request)
    return _mean_of_ratios(top, bottom, units)


def rates_by_position(log: StepLog, formula: str) -> list[Value]:
    """A ratio of BY_POSITION at each position i = 1..gamma."""
    one = np.zeros_like(log.request)
    return [_mean_of_ratios(*BY_POSITION[formula](log, i), one) for i in range(1, log.gamma + 1)]


def _mean_of_ratios(top: Counted, bottom: Counted, units: np.ndarray) -> Value:
    tops, bottoms = (np.bincount(units, weights=np.broadcast_to(counted, units.shape)) for counted in (top, bottom))
    defined = bottoms > 0
    return float((tops[defined] / bottoms[defined]).mean()) if defined.any() else None


def _implied_alpha(log: StepLog) -> Value:
    """The alpha in [0, 1] at which the geometric series is the acceptance length of full drafts."""
    length = ratio(log, FULL_DRAFTS)
    if length is None or log.gamma == 0:
        return None
    return float(brentq(lambda alpha: expected_tokens(alpha, log.gamma) - length, 0.0, 1.0, xtol=1e-15))
