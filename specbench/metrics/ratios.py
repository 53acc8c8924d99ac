"""The ratios that acceptance metrics are, counted over one step log; whose each is, definitions.py says.

A step log has a line a verification and request (results.STEP_SCHEMA). For step s: d_s tokens drafted
(num_draft_tokens), a_s of them accepted (num_accepted, before a stop token cut the block), e_s emitted (num_emitted, at
most a_s + 1). N steps; n of them drafted (d > 0); gamma is the setting. A tree drafts more tokens than it could accept:
d counts them in sums, and if d is compared with a position, with a, e or gamma, the depth of the tree (draft_depth)
stands for it. What tells definitions apart:

- whether the recovered or bonus token counts (a + 1 or a);
- whether steps that drafted nothing, and drafts cut short by a length limit, are in the denominator;
- whether a block that holds the end of the text counts as verified (a + 1) or as emitted (e);
- whether steps are pooled or requests averaged.

``None`` is a ratio that the log leaves undefined. All values are tokens a step, or shares from 0 to 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.optimize import brentq

from specbench.metrics.theory import expected_tokens

Value = float | None


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
        """From the columns of results.STEP_SCHEMA."""
        names = ("num_draft_tokens", "num_accepted", "num_emitted")
        drafted, accepted, emitted = (steps[name].to_numpy(dtype=np.int64) for name in names)
        # Logs from before there were trees do not say the depth apart.
        known = steps["draft_depth"].fillna(steps["num_draft_tokens"]) if "draft_depth" in steps else drafted
        depth = np.asarray(known, dtype=np.int64)
        return StepLog(drafted, depth, accepted, emitted, pd.factorize(steps["prompt"])[0], gamma)

    @property
    def drafting(self) -> np.ndarray:
        """Which steps drafted at all."""
        return self.drafted > 0

    def by_request(self, values: np.ndarray) -> np.ndarray:
        """Sums over the steps of each request."""
        return np.bincount(self.request, weights=values)

    def steps_by_request(self) -> np.ndarray:
        """Number of steps of each request."""
        return np.bincount(self.request)


def _ratio(top: int | np.integer, bottom: int | np.integer) -> Value:
    return float(top / bottom) if bottom > 0 else None


def _mean_of_ratios(top: np.ndarray, bottom: np.ndarray) -> Value:
    defined = bottom > 0
    return float((top[defined] / bottom[defined]).mean()) if defined.any() else None


# --- Lengths: tokens a step ---


def acceptance_length(log: StepLog) -> Value:
    """(sum a + N) / N: every step counts, also steps that drafted nothing, and blocks as verified."""
    return _ratio(log.accepted.sum() + len(log.accepted), len(log.accepted))


def accepted_per_step(log: StepLog) -> Value:
    """sum a / N: without the token after the block."""
    return _ratio(log.accepted.sum(), len(log.accepted))


def emitted_per_step(log: StepLog) -> Value:
    """sum e / N: what the text gained, blocks cut at its end counted by what was kept."""
    return _ratio(log.emitted.sum(), len(log.emitted))


def mean_request_emitted(log: StepLog) -> Value:
    """Mean over requests of sum e / N."""
    return _mean_of_ratios(log.by_request(log.emitted), log.steps_by_request())


def drafting_steps_length(log: StepLog) -> Value:
    """1 + sum a / n: steps that drafted nothing are no drafts."""
    accepted = _ratio(log.accepted.sum(), log.drafting.sum())
    return None if accepted is None else 1 + accepted


def mean_request_length(log: StepLog) -> Value:
    """Mean over requests of 1 + sum a / n; requests that drafted nothing left out."""
    accepted = _mean_of_ratios(log.by_request(log.accepted), log.by_request(log.drafting))
    return None if accepted is None else 1 + accepted


def full_drafts_length(log: StepLog) -> Value:
    """1 + mean of a where d = gamma: drafts cut short by a length limit left out."""
    full = log.depth == log.gamma
    return 1 + float(log.accepted[full].mean()) if full.any() else None


# --- Rates: a share of what was drafted, or of what a step could emit ---


def draft_acceptance_rate(log: StepLog) -> Value:
    """sum a / sum d: tokens behind a rejection count as drafted and not accepted."""
    return _ratio(log.accepted.sum(), log.drafted.sum())


def mean_request_rate(log: StepLog) -> Value:
    """Mean over requests of sum a / sum d; requests that drafted nothing left out."""
    return _mean_of_ratios(log.by_request(log.accepted), log.by_request(log.drafted))


def nominal_rate(log: StepLog) -> Value:
    """sum a / (N gamma): every step counts as gamma drafted tokens."""
    return _ratio(log.accepted.sum(), len(log.accepted) * log.gamma)


def mean_request_nominal_rate(log: StepLog) -> Value:
    """Mean over requests of (sum e - N) / (N gamma): accepted tokens told from the length of the text."""
    steps = log.steps_by_request()
    return _mean_of_ratios(log.by_request(log.emitted) - steps, steps * log.gamma)


def slots_filled(log: StepLog) -> Value:
    """(sum a + N) / (N (gamma + 1)): the token after the block on both sides."""
    return _ratio(log.accepted.sum() + len(log.accepted), len(log.accepted) * (log.gamma + 1))


def drafting_slots_filled(log: StepLog) -> Value:
    """(sum a + n) / (n (gamma + 1)): the same over the steps that drafted."""
    steps = log.drafting.sum()
    return _ratio(log.accepted.sum() + steps, steps * (log.gamma + 1))


def mean_request_slots_filled(log: StepLog) -> Value:
    """Mean over requests of (sum a + n) / (sum d + n); requests that drafted nothing left out."""
    steps = log.by_request(log.drafting)
    return _mean_of_ratios(log.by_request(log.accepted) + steps, log.by_request(log.drafted) + steps)


def tested_rate(log: StepLog) -> Value:
    """sum a / sum (a + [a < d]): of the tokens whose predecessors were all accepted. An estimate of alpha."""
    return _ratio(log.accepted.sum(), (log.accepted + (log.accepted < log.depth)).sum())


def implied_alpha(log: StepLog) -> Value:
    """The alpha in [0, 1] at which (1 - alpha^(gamma+1)) / (1 - alpha) is the acceptance length of full drafts."""
    length = full_drafts_length(log)
    if length is None or log.gamma == 0:
        return None
    return float(brentq(lambda alpha: expected_tokens(alpha, log.gamma) - length, 0.0, 1.0, xtol=1e-15))


def whole_drafts(log: StepLog) -> Value:
    """#{e = d + 1, d > 0} / n: drafts that went into the text whole, and the bonus token behind them."""
    return _ratio((log.drafting & (log.emitted == log.depth + 1)).sum(), log.drafting.sum())


# --- Rates by position i = 1..gamma in the block ---


def joint_rates(log: StepLog) -> list[Value]:
    """#{a >= i} / #{d >= i}: of the blocks that drafted i tokens."""
    return [_ratio((log.accepted >= i).sum(), (log.depth >= i).sum()) for i in range(1, log.gamma + 1)]


def joint_rates_of_all_drafts(log: StepLog) -> list[Value]:
    """#{a >= i} / n: drafts cut short lower it at late positions."""
    return [_ratio((log.accepted >= i).sum(), log.drafting.sum()) for i in range(1, log.gamma + 1)]


def joint_rates_of_all_steps(log: StepLog) -> list[Value]:
    """#{e > i} / N: the share of steps that put more than i tokens into the text, whatever they drafted."""
    return [_ratio((log.emitted > i).sum(), len(log.emitted)) for i in range(1, log.gamma + 1)]


def conditional_rates(log: StepLog) -> list[Value]:
    """#{a >= i} / #{d >= i, a >= i - 1}: of the blocks that reached position i."""
    reached = [(log.depth >= i) & (log.accepted >= i - 1) for i in range(1, log.gamma + 1)]
    return [_ratio((log.accepted >= i).sum(), tested.sum()) for i, tested in enumerate(reached, start=1)]


def conditional_rates_of_all_steps(log: StepLog) -> list[Value]:
    """#{e > i} / #{e >= i}: of the steps that put i tokens into the text, whether they drafted another or not."""
    return [_ratio((log.emitted > i).sum(), (log.emitted >= i).sum()) for i in range(1, log.gamma + 1)]
