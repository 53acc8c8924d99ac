"""How many prompts it takes to tell two settings apart, from the variance in a trace.

Both settings' tokens a step are ratios of sums over prompts, T/S with T tokens and S steps. To first order the
difference T/S1 - T/S2 varies like the mean of the prompts' influences,

    e_i = (t_i - L1 s1_i) / mean(s1) - (t_i - L2 s2_i) / mean(s2),      L = T/S

so that n prompts tell a difference d apart in a two-sided test of level alpha with power 1 - beta where

    n = ((z_(1 - alpha/2) + z_(1 - beta)) sd(e) / d)^2

Replay runs both settings on the same texts and sees s as an expectation. Decoding has its own noise on top, in each
setting anew; its size is found by drawing runs from the trace (simulate.py). Texts are taken to differ between runs of
decoding too, unless their seeds make them equal, so the texts' part does not cancel there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from scipy import stats

from specbench.errors import ArgumentError
from specbench.replay.renewal import Replayed, replay
from specbench.replay.simulate import simulated_steps
from specbench.replay.survival import survival
from specbench.replay.trace import Trace

PLAN = "plan.parquet"
RUNS = 16  # drawn to find the accept/reject noise
PLAN_SCHEMA = pa.schema(
    [
        ("first", pa.string()),
        ("second", pa.string()),
        ("difference", pa.float64()),
        ("prompts_replayed", pa.int64()),
        ("prompts_decoded", pa.int64()),
        ("alpha", pa.float64()),
        ("power", pa.float64()),
    ]
)


@dataclass(frozen=True)
class Setting:
    """Tokens [n] of each text, its expected steps [n], and the variance [n] of its steps from run to run."""

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
        """Of one text's influence when the setting is decoded."""
        noise = (self.length / self.steps.mean()) ** 2 * float(self.noise.mean())
        return float(self.influence.var(ddof=1)) + noise


def prompts_needed(variance: float, difference: float, alpha: float, power: float) -> int | None:
    """The n of the module's formula, at least 2; None where there is no difference to tell.

    Raises:
        ArgumentError: alpha or power not inside (0, 1).
    """
    for name, value in (("alpha", alpha), ("power", power)):
        if not 0 < value < 1:
            raise ArgumentError(f"{name}={value}: must lie inside (0, 1)")
    if difference == 0:
        return None
    quantiles = stats.norm.ppf(1 - alpha / 2) + stats.norm.ppf(power)
    return max(2, math.ceil(quantiles**2 * variance / difference**2))


def setting(trace: Trace, replayed: Replayed) -> Setting:
    """A replayed setting with its noise; texts of about one length are best, as decoding with a limit makes them."""
    drawn = simulated_steps(trace, survival(trace, replayed.rule, replayed.gamma), RUNS)
    return Setting(
        f"{replayed.rule}, gamma {replayed.gamma}", replayed.tokens, replayed.steps, drawn.var(axis=0, ddof=1)
    )


def compare(first: Setting, second: Setting, alpha: float, power: float) -> dict[str, Any]:
    """A row of PLAN_SCHEMA."""
    difference = second.length - first.length
    paired = float((second.influence - first.influence).var(ddof=1)) if len(first.tokens) > 1 else float("nan")
    decoded = first.decoded_variance + second.decoded_variance if len(first.tokens) > 1 else float("nan")
    known = len(first.tokens) > 1
    return {
        "first": first.name,
        "second": second.name,
        "difference": difference,
        "prompts_replayed": prompts_needed(paired, difference, alpha, power) if known else None,
        "prompts_decoded": prompts_needed(decoded, difference, alpha, power) if known else None,
        "alpha": alpha,
        "power": power,
    }


def plan(trace: Trace, gammas: Sequence[int], alpha: float, power: float) -> list[dict[str, Any]]:
    """Neighbouring gammas under each rule, and the two rules at each gamma."""
    chosen = sorted({gamma for gamma in gammas if gamma > 0})
    settings = {rule: [setting(trace, each) for each in replay(trace, rule, chosen)] for rule in ("token", "block")}
    pairs = [pair for rule in settings for pair in pairwise(settings[rule])]
    pairs += list(zip(settings["token"], settings["block"], strict=True))
    return [compare(first, second, alpha, power) for first, second in pairs]
