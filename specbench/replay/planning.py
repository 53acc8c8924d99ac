"""How many prompts it takes to tell two settings apart, from the variance in a trace.

Both settings' tokens a step are ratios of sums over prompts, T/S with T tokens and S steps. To first order the
difference T/S1 - T/S2 varies like the mean of the prompts' influences,

    e_i = (t_i - L1 s1_i) / mean(s1) - (t_i - L2 s2_i) / mean(s2),      L = T/S

so that n prompts tell a difference d apart in a two-sided test of level alpha with power 1 - beta where

    n = ((t_(1 - alpha/2) + t_(1 - beta)) sd(e) / d)^2

with quantiles of Student's t at n - 1 degrees of freedom, which make few prompts more. Texts of one prompt are alike,
and are summed before anything is compared. The difference is itself an estimate, and n goes with its square: the n at
both ends of its 95% interval are given too.

Replay runs both settings on the same texts and sees s as an expectation. Decoding has its own noise on top, in each
setting anew; its size is found by drawing runs from the trace (simulate.py). Texts are taken to differ between runs of
decoding too, unless their seeds make them equal, so the texts' part does not cancel there.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Any

import numpy as np
from scipy import stats

from specbench.core.rounding import interval
from specbench.metrics.intervals import CONFIDENCE, sums_by_unit
from specbench.replay.renewal import Replayed, replay
from specbench.replay.simulate import simulated_steps
from specbench.replay.summary import by_prompt
from specbench.replay.survival import survival
from specbench.replay.trace import Trace
from specbench.rules import RuleInfo

PLAN = "plan.parquet"
RUNS = 16  # drawn to find the accept/reject noise
_NONE = 1e-9  # tokens a step: what is less is rounding


@dataclass(frozen=True, kw_only=True)
class PlanRow:
    """How many prompts tell two settings apart, if the texts are replayed, and if they are decoded."""

    first: str
    second: str
    difference: float
    prompts_replayed: int | None = None
    prompts_decoded: int | None = None
    alpha: float
    power: float
    difference_low: float | None = None  # 95% interval over the trace's prompts
    difference_high: float | None = None
    # The prompts at the interval's end that is farther from 0, and at the nearer; None: 0 lies inside.
    prompts_replayed_least: int | None = None
    prompts_replayed_most: int | None = None
    prompts_decoded_least: int | None = None
    prompts_decoded_most: int | None = None


@dataclass(frozen=True)
class PlannedSetting:
    """Tokens [n] of each prompt, its expected steps [n], and the variance [n] of its steps from run to run."""

    name: str
    tokens: np.ndarray
    steps: np.ndarray
    noise: np.ndarray

    @property
    def length(self) -> float:
        return float(self.tokens.sum() / self.steps.sum())

    @property
    def influence(self) -> np.ndarray:
        return (self.tokens - self.length * self.steps) / self.steps.mean()

    @property
    def decoded_variance(self) -> float:
        """Of one prompt's influence when the setting is decoded."""
        noise = (self.length / self.steps.mean()) ** 2 * float(self.noise.mean())
        return float(self.influence.var(ddof=1)) + noise


def prompts_needed(variance: float, difference: float, alpha: float, power: float) -> int | None:
    """The n of the module's formula, at least 2; None where there is no difference to tell. alpha and power lie inside
    (0, 1)."""
    if abs(difference) < _NONE:
        return None
    count = 2
    while True:  # what is needed falls as the quantiles' degrees of freedom rise: a few turns
        quantiles = stats.t.ppf(1 - alpha / 2, count - 1) + stats.t.ppf(power, count - 1)
        needed = quantiles**2 * variance / difference**2
        if needed <= count:
            return count
        normal = stats.norm.ppf(1 - alpha / 2) + stats.norm.ppf(power)
        count = max(count + 1, math.ceil(normal**2 * variance / difference**2))


def setting(trace: Trace, rule: RuleInfo | str, replayed: Replayed) -> PlannedSetting:
    """A replayed setting with its noise; prompts of about one length are best, as decoding with a limit makes them.

    Args:
        rule: that was replayed, or the name of a registered one.
    """
    drawn = simulated_steps(trace, survival(trace, rule, replayed.gamma), RUNS)
    tokens, steps = by_prompt(trace, [replayed])
    summed = np.stack([sums_by_unit(trace.conversations, run) for run in drawn])
    return PlannedSetting(f"{replayed.rule}, gamma {replayed.gamma}", tokens, steps[:, 0], summed.var(axis=0, ddof=1))


def compare(first: PlannedSetting, second: PlannedSetting, alpha: float, power: float) -> PlanRow:
    """A row of the plan; of one prompt no variance is known, and so no number of prompts."""
    difference, count = second.length - first.length, len(first.tokens)
    known: dict[str, Any] = {}
    if count > 1:
        paired = float((second.influence - first.influence).var(ddof=1))
        half = float(stats.t.ppf((1 + CONFIDENCE) / 2, count - 1)) * math.sqrt(paired / count)
        near, far = max(0.0, abs(difference) - half), abs(difference) + half
        known |= {"difference_low": difference - half, "difference_high": difference + half}
        for name, variance in (("replayed", paired), ("decoded", first.decoded_variance + second.decoded_variance)):
            for end, assumed in (("", difference), ("_least", far), ("_most", near)):
                known[f"prompts_{name}{end}"] = prompts_needed(variance, assumed, alpha, power)
    return PlanRow(first=first.name, second=second.name, difference=difference, alpha=alpha, power=power, **known)


def plan(trace: Trace, rules: Sequence[RuleInfo], gammas: Sequence[int], alpha: float, power: float) -> list[PlanRow]:
    """Neighbouring gammas under each rule, and each two rules at each gamma."""
    chosen = sorted({gamma for gamma in gammas if gamma > 0})
    settings = [[setting(trace, info, result) for result in replay(trace, info, chosen)] for info in rules]
    pairs = [pair for of_rule in settings for pair in pairwise(of_rule)]
    pairs += [pair for first, second in combinations(settings, 2) for pair in zip(first, second, strict=True)]
    return [compare(first, second, alpha, power) for first, second in pairs]


def rules_compared(planned: Sequence[PlanRow]) -> str:
    """Each two rules at each gamma of :func:`plan` in words; empty for no plan.

    Such as ``block, gamma 4: 0.12 [0.05, 0.19] more tokens a step than token, gamma 4``.
    """
    sentences = []
    for row in planned:
        if row.first.split(",")[0] != row.second.split(",")[0]:
            difference = interval(row.difference, row.difference_low, row.difference_high)
            sentences.append(f"{row.second}: {difference} more tokens a step than {row.first}")
    return "; ".join(sentences)
