"""Does decoding find what replay says? Tests over prompts, joint over all settings.

``points`` has a line a decoded text: gamma, prompt, tokens, steps, expected_steps (of that very text, replayed).
Samples of a prompt, and turns of a conversation, are summed before anything is compared, since only prompts and
conversations are independent.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import stats

from specbench.core.errors import ArgumentError
from specbench.metrics.intervals import Estimate, ratios_of_sums
from specbench.replay.trace import first_turn

_COUNTS = ("tokens", "steps", "expected_steps")


@dataclass(frozen=True)
class Agreement:
    """One decoded setting beside its replay.

    Attributes:
        decoded, same_text: tokens a step as decoded, and by replay of the decoded texts, with 95% intervals. The ratio
            of the intervals' widths is what the accept/reject noise adds.
        difference_p: two-sided p-value of the decoded length against the replay of independent texts; None if these
            were not replayed, and of one prompt.
        same_text_p: two-sided p-value of steps - expected_steps, whose mean is 0 given the texts; None of one prompt.

    Both standard errors are by the scatter of prompts, or the least that whole numbers of these means can have.
    """

    decoded: Estimate
    same_text: Estimate
    difference_p: float | None
    same_text_p: float | None

    @property
    def width_ratio(self) -> float:
        return (self.decoded.high - self.decoded.low) / max(self.same_text.high - self.same_text.low, 1e-12)


def agreement(points: pd.DataFrame, independent: tuple[np.ndarray, np.ndarray] | None) -> Agreement:
    """Compares one setting.

    Args:
        points: the decoded texts of one setting: ``prompt`` (a name or a number), ``tokens``, ``steps`` and
            ``expected_steps``, a line a text.
        independent: tokens and expected steps, [prompts] each, of a trace of its own (replay/summary.by_prompt); None
            if it was not replayed.

    Raises:
        ArgumentError: points without one of their columns, or with a number that no text has.
    """
    _check_points(points)
    units = points["prompt"].map(lambda prompt: first_turn(str(prompt)))
    sums = points.groupby(units, sort=False)[[*_COUNTS]].sum()
    decoded, same_text = ratios_of_sums(sums["tokens"].to_numpy(), sums[["steps", "expected_steps"]].to_numpy())
    if len(sums) < 2:  # nothing tells how much prompts scatter
        return Agreement(decoded, same_text, None, None)
    surprise = (sums["steps"] - sums["expected_steps"]).to_numpy()
    # A whole number with mean m has a variance of f (1 - f) or more, where f is the fractional part of m. Prompts in
    # which nothing rare happened (a rejection, where nearly all is accepted) scatter less than that.
    fraction = points["expected_steps"].to_numpy() % 1
    noise = float((fraction * (1 - fraction)).sum())
    error = np.sqrt(max(len(surprise) * surprise.var(ddof=1), noise)) / len(surprise)
    return Agreement(
        decoded,
        same_text,
        None if independent is None else _difference_p(sums, noise, *independent),
        _p_value(float(surprise.mean()), float(error), len(surprise) - 1),
    )


def _check_points(points: pd.DataFrame) -> None:
    if missing := [name for name in ("prompt", *_COUNTS) if name not in points]:
        raise ArgumentError(f"points: no column {missing[0]}. Give prompt, {', '.join(_COUNTS)}, a line a text.")
    if (unnamed := points["prompt"].isna()).any():
        raise ArgumentError(f"points: no prompt in line {points.index[unnamed][0]}. Give a name or a number.")
    for name in _COUNTS:
        if not pd.api.types.is_numeric_dtype(points[name]):
            raise ArgumentError(f"points: {name} holds {points[name].dtype}. Give numbers.")
        wrong = points[name][~(np.isfinite(points[name]) & (points[name] >= 0))]
        if len(wrong):
            raise ArgumentError(f"points: {name} is {wrong.iloc[0]} in line {wrong.index[0]}. Give a number from 0.")
    for name in ("steps", "expected_steps"):
        wrong = points[(points[name] == 0) | (points[name] > points["tokens"] + 1e-6)]  # expected steps are rounded
        if len(wrong):
            problem = f"{name} is {wrong[name].iloc[0]:g} for {wrong['tokens'].iloc[0]:g} tokens"
            remedy = "Each step adds at least one token, and each text has a step. Are columns swapped?"
            raise ArgumentError(f"points: {problem} in line {wrong.index[0]}. {remedy}")


def _difference_p(sums: pd.DataFrame, noise: float, tokens: np.ndarray, expected_steps: np.ndarray) -> float:
    """``noise``: the least variance of the sum of decoded steps, given the texts."""
    length, error = _length_and_error(sums["tokens"].to_numpy(), sums["steps"].to_numpy())
    _, of_texts = _length_and_error(sums["tokens"].to_numpy(), sums["expected_steps"].to_numpy())
    other, other_error = _length_and_error(tokens, expected_steps)
    error = max(error, float(np.hypot(of_texts, length / sums["steps"].sum() * np.sqrt(noise))))
    freedom = min(len(sums), len(tokens)) - 1
    return _p_value(length - other, float(np.hypot(error, other_error)), freedom)


def joint_p_value(p_values: Sequence[float]) -> float:
    """Of the hypothesis that all settings agree, whatever their dependence (Bonferroni)."""
    return min(1.0, len(p_values) * min(p_values))


def _length_and_error(tokens: np.ndarray, steps: np.ndarray) -> tuple[float, float]:
    length = float(tokens.sum() / steps.sum())
    influence = (tokens - length * steps) / steps.mean()
    return length, float(influence.std(ddof=1) / np.sqrt(len(tokens)))


def _p_value(difference: float, error: float, freedom: int) -> float:
    if error == 0:
        return 1.0 if abs(difference) < 1e-9 else 0.0
    return float(2 * stats.t.sf(abs(difference) / error, freedom))
