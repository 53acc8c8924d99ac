"""A cost model fitted to measured steps: a roofline for each model, straight lines for what is around them.

A forward pass over n new tokens (all requests together) with k tokens cached costs

    t(n, k) = floor + per_token * max(0, n - knee) + per_cached * k

Up to ``knee`` tokens more of them are free, since reading the weights takes the time (the memory-bound part of a
roofline and the fixed costs of a call, which timings cannot tell apart); beyond it arithmetic is the limit. Reading the
cache costs per token cached. A step of gamma drafted tokens is gamma passes of the draft over one token a request, one
of the target over gamma + 1, a verification, and the loop around them.

What the lines leave over is kept as a ratio, measured / fitted, of each measured (batch, gamma), and interpolated: at
measured points the model says what was measured, between and beyond them it has the roofline's shape.
"""

from dataclasses import asdict, dataclass, replace

import numpy as np
import pandas as pd
from scipy.interpolate import RegularGridInterpolator
from scipy.optimize import nnls

from specbench.core.errors import ArgumentError

COST = "cost.parquet"
PHASES = ("draft", "target", "verify", "rest")


@dataclass(frozen=True)
class CostRow:
    """Steps of one batch, draft length and context, timed in one round; seconds are medians over the steps."""

    round: int
    batch: int
    gamma: int
    context: float  # tokens cached a request, mean over the steps
    steps: int
    draft: float  # seconds a step, by phase
    target: float
    verify: float
    rest: float
    step: float  # seconds of a whole step
    start_tokens: int  # prompt tokens fed, all requests
    start_draft: float  # seconds of feeding the prompts
    start_target: float
    kernels: int | None  # that a GPU runs in a step; counted in the last round


@dataclass(frozen=True)
class Roofline:
    """See the module. Seconds and tokens; knee is None where the measurements never leave the flat part."""

    floor: float
    per_token: float
    knee: float | None
    per_cached: float

    def seconds(self, tokens: np.ndarray, cached: np.ndarray) -> np.ndarray:
        """t(n, k)."""
        over = 0.0 if self.knee is None else np.maximum(0.0, tokens - self.knee)
        return np.asarray(self.floor + self.per_token * over + self.per_cached * cached)


def fit_roofline(tokens: np.ndarray, cached: np.ndarray, seconds: np.ndarray) -> Roofline:
    """The roofline of the least sum of squared relative errors: every knee is tried, the rest is a non-negative fit.

    Raises:
        ArgumentError: no measurements, or times that are not positive.
    """
    if len(seconds) == 0 or not (seconds > 0).all():
        raise ArgumentError("seconds: needs positive times")
    best: tuple[float, Roofline] | None = None
    candidates = np.unique(np.concatenate([[0.0], tokens, (np.unique(tokens)[1:] + np.unique(tokens)[:-1]) / 2]))
    for knee in candidates:
        over = np.maximum(0.0, tokens - knee)
        design = np.stack([np.ones(len(seconds)), over, cached], axis=1) / seconds[:, None]
        (floor, per_token, per_cached), error = nnls(design, np.ones(len(seconds)))
        # Of knees that fit alike, the larger: fewer tokens are then said to cost.
        if best is None or error <= best[0] * (1 + 1e-9):
            known = float(knee) if over.any() and per_token > 0 else None
            best = error, Roofline(float(floor), float(per_token), known, float(per_cached))
    assert best is not None
    return best[1]


@dataclass(frozen=True)
class Line:
    """fixed + per_token * tokens, in seconds."""

    fixed: float
    per_token: float

    def seconds(self, tokens: np.ndarray) -> np.ndarray:
        return np.asarray(self.fixed + self.per_token * tokens)


def fit_line(tokens: np.ndarray, seconds: np.ndarray) -> Line:
    """Non-negative, of least squared error."""
    (fixed, per_token), _ = nnls(np.stack([np.ones(len(tokens)), tokens], axis=1), seconds)
    return Line(float(fixed), float(per_token))


@dataclass(frozen=True)
class CostModel:
    """Step times as a function of batch, gamma and tokens cached a request. Made by ``fit``.

    Attributes:
        draft: of one drafted token a request; None where nothing was drafted.
        start: of feeding prompts to the target; start_both, to target and draft; by tokens fed.
        correction: measured / fitted of a step, rows by batch, columns by gamma.
    """

    target: Roofline
    draft: Roofline | None
    verify: Line
    rest: Line
    start: Line
    start_both: Line
    batches: np.ndarray
    gammas: np.ndarray
    correction: np.ndarray

    def phases(self, batch: np.ndarray, gamma: np.ndarray, context: np.ndarray | float) -> dict[str, np.ndarray]:
        """Fitted seconds of each phase of a step, uncorrected; arrays broadcast."""
        batch, gamma = np.asarray(batch, dtype=float), np.asarray(gamma, dtype=float)
        cached, scored = batch * context, batch * (gamma + 1)
        drafted = np.zeros(np.broadcast(batch, gamma).shape)
        if self.draft is not None:
            drafted = np.asarray(gamma * self.draft.seconds(batch, cached))
        return {
            "draft": drafted,
            "target": self.target.seconds(scored, cached),
            "verify": self.verify.seconds(scored),
            "rest": self.rest.seconds(scored),
        }

    def step_seconds(self, batch: np.ndarray, gamma: np.ndarray, context: np.ndarray | float) -> np.ndarray:
        """Seconds of a step with the correction."""
        total = sum(self.phases(batch, gamma, context).values())
        return np.asarray(total) * self._corrections(np.asarray(batch, dtype=float), np.asarray(gamma, dtype=float))

    def start_seconds(self, tokens: np.ndarray | float, drafting: bool) -> np.ndarray:
        """Seconds of feeding prompts of that many tokens in all."""
        return (self.start_both if drafting else self.start).seconds(np.asarray(tokens, dtype=float))

    def _corrections(self, batch: np.ndarray, gamma: np.ndarray) -> np.ndarray:
        """Interpolated corrections; values beyond the grid have those of its edge."""
        axes = np.log(self.batches), self.gammas
        places = [np.clip(values, axis[0], axis[-1]) for values, axis in zip((np.log(batch), gamma), axes, strict=True)]
        return RegularGridInterpolator(axes, self.correction)(tuple(places))

    def describe(self) -> dict[str, object]:
        """The fit as plain numbers, for a JSON file."""
        values = asdict(self).items()
        return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in values}


def fit(rows: pd.DataFrame) -> CostModel:
    """A cost model of measured steps (columns of CostRow): every (batch, gamma), gamma 0 among them.

    With one batch and one context the cache is taken to cost nothing: what little it grows during the steps cannot be
    told from the tokens scored, and times at other contexts would be made up.

    Raises:
        ArgumentError: an incomplete grid.
    """
    batches, gammas = (np.sort(rows[name].unique()).astype(float) for name in ("batch", "gamma"))
    grid = rows.groupby(["batch", "gamma"]).size()
    if gammas[0] != 0 or len(grid) < len(batches) * len(gammas):
        raise ArgumentError("rows: every batch must be measured at every gamma, 0 among them")
    batch, gamma, context = (rows[name].to_numpy(dtype=float) for name in ("batch", "gamma", "context"))
    scored, cached, drafting = batch * (gamma + 1), batch * context, gamma > 0
    read = cached if rows["start_tokens"].nunique() > 1 else np.zeros(len(rows))
    draft = None
    if drafting.any() and (rows["draft"].to_numpy()[drafting] > 0).all():
        passes = rows["draft"].to_numpy()[drafting] / gamma[drafting]
        draft = fit_roofline(batch[drafting], read[drafting], passes)
    fed = rows["start_tokens"].to_numpy(dtype=float)
    both = rows["start_target"].to_numpy() + rows["start_draft"].to_numpy()
    fed_to_both = drafting if drafting.any() else ~drafting  # plain decoding feeds nothing to the draft
    plain = CostModel(
        fit_roofline(scored, read, rows["target"].to_numpy()),
        draft,
        fit_line(scored, rows["verify"].to_numpy()),
        fit_line(scored, rows["rest"].to_numpy()),
        fit_line(fed, rows["start_target"].to_numpy()),
        fit_line(fed[fed_to_both], both[fed_to_both]),
        batches,
        gammas,
        correction=np.ones((len(batches), len(gammas))),
    )
    ratio = rows.assign(ratio=rows["step"] / plain.step_seconds(batch, gamma, context))
    table = ratio.pivot_table(index="batch", columns="gamma", values="ratio", aggfunc="median").to_numpy()
    return replace(plain, correction=table)
