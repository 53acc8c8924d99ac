"""One step log, every definition: what others would have called the same numbers.

A step log has a line a verification and request (results.STEP_SCHEMA). For step s: d_s tokens drafted
(num_draft_tokens), a_s of them accepted (num_accepted, before a stop token cut the block), e_s emitted (num_emitted, at
most a_s + 1). N steps; gamma is the setting. What tells definitions apart:

- whether the recovered or bonus token counts (a + 1 or a);
- whether steps that drafted nothing, and drafts cut short by a length limit, are in the denominator;
- whether a block that holds the end of the text counts as verified (a + 1) or as emitted (e);
- whether steps are pooled or requests averaged.

``None`` is a metric that the log leaves undefined. Engines also emit a first token from the prompt's own forward pass,
which no step log holds; where one of them counts it, the note says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pandas as pd

Value = float | None


@dataclass(frozen=True)
class StepLog:
    """d, a, e of every step, the request of each step as a number from 0, and the gamma of the run."""

    drafted: np.ndarray
    accepted: np.ndarray
    emitted: np.ndarray
    request: np.ndarray
    gamma: int

    @staticmethod
    def of(steps: pd.DataFrame, gamma: int) -> StepLog:
        """From the columns of results.STEP_SCHEMA."""
        names = ("num_draft_tokens", "num_accepted", "num_emitted")
        drafted, accepted, emitted = (steps[name].to_numpy(dtype=np.int64) for name in names)
        return StepLog(drafted, accepted, emitted, pd.factorize(steps["prompt"])[0], gamma)

    def by_request(self, values: np.ndarray) -> np.ndarray:
        """Sums over the steps of each request."""
        return np.bincount(self.request, weights=values)


@dataclass(frozen=True)
class Metric:
    """A definition: its name here, whose it is and where it is written down, its formula, and how it is computed."""

    name: str
    owner: str
    formula: str
    compute: Callable[[StepLog], Value]


def _ratio(top: int | np.integer, bottom: int | np.integer) -> Value:
    return float(top / bottom) if bottom > 0 else None


def _mean_of_ratios(top: np.ndarray, bottom: np.ndarray) -> Value:
    defined = bottom > 0
    return float((top[defined] / bottom[defined]).mean()) if defined.any() else None


# --- Acceptance length: tokens a step ---


def acceptance_length(log: StepLog) -> Value:
    """(sum a + N) / N. specbench's acceptance_length; a serving log's average over all steps."""
    return _ratio(log.accepted.sum() + len(log.accepted), len(log.accepted))


def accepted_per_step(log: StepLog) -> Value:
    """sum a / N: without the token after the block."""
    return _ratio(log.accepted.sum(), len(log.accepted))


def emitted_per_step(log: StepLog) -> Value:
    """sum e / N: what the text gained, blocks cut at its end counted by what was kept."""
    return _ratio(log.emitted.sum(), len(log.emitted))


def drafting_steps_length(log: StepLog) -> Value:
    """1 + sum a / #{d > 0}: steps that drafted nothing are no drafts."""
    return None if not (log.drafted > 0).any() else float(1 + log.accepted.sum() / (log.drafted > 0).sum())


def full_drafts_length(log: StepLog) -> Value:
    """1 + mean of a where d = gamma: drafts cut short by a length limit left out."""
    full = log.drafted == log.gamma
    return 1 + float(log.accepted[full].mean()) if full.any() else None


def mean_request_length(log: StepLog) -> Value:
    """Mean over requests of sum e / steps."""
    return _mean_of_ratios(log.by_request(log.emitted), log.by_request(np.ones(len(log.emitted))))


# --- Acceptance rate: a share of what was drafted ---


def draft_acceptance_rate(log: StepLog) -> Value:
    """sum a / sum d: tokens behind a rejection count as drafted and not accepted."""
    return _ratio(log.accepted.sum(), log.drafted.sum())


def mean_request_rate(log: StepLog) -> Value:
    """Mean over requests of sum a / sum d; requests that drafted nothing left out."""
    return _mean_of_ratios(log.by_request(log.accepted), log.by_request(log.drafted))


def nominal_rate(log: StepLog) -> Value:
    """sum a / (N gamma): every step counts as gamma drafted tokens."""
    return _ratio(log.accepted.sum(), len(log.accepted) * log.gamma)


def slots_filled(log: StepLog) -> Value:
    """(sum a + N) / (N (gamma + 1)): the token after the block on both sides."""
    return _ratio(log.accepted.sum() + len(log.accepted), len(log.accepted) * (log.gamma + 1))


def tested_rate(log: StepLog) -> Value:
    """sum a / sum (a + [a < d]): of the tokens whose predecessors were all accepted. An estimate of alpha."""
    return _ratio(log.accepted.sum(), (log.accepted + (log.accepted < log.drafted)).sum())


def implied_alpha(log: StepLog) -> Value:
    """The alpha in [0, 1] at which (1 - alpha^(gamma+1)) / (1 - alpha) is the acceptance length of full drafts."""
    length = full_drafts_length(log)
    if length is None or log.gamma == 0:
        return None
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if sum(middle**i for i in range(log.gamma + 1)) < length:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def whole_drafts(log: StepLog) -> Value:
    """#{a = d, d > 0} / #{d > 0}: drafts accepted whole."""
    drafting = log.drafted > 0
    return _ratio((drafting & (log.accepted == log.drafted)).sum(), drafting.sum())


METRICS = (
    Metric("acceptance length", "specbench; SGLang log, spec_accept_length", "(Σa + N) / N", acceptance_length),
    Metric("block efficiency", "Leviathan et al. 2211.17192, E(#tokens); Sun et al. 2403.10444", "(Σa + N) / N",
           acceptance_length),
    Metric("mean accepted tokens", "Spec-Bench, evaluation/speed.py; EAGLE, accept_length_tree", "(Σa + N) / N",
           acceptance_length),
    Metric("accepted tokens a step", "papers that leave the last token out", "Σa / N", accepted_per_step),
    Metric("accept length", "SpecForge, benchmarks: completion_tokens / spec_verify_ct", "Σe / N", emitted_per_step),
    Metric("mean acceptance length", "vLLM V1, spec_decode/metrics.py", "1 + Σa / #{d>0}", drafting_steps_length),
    Metric("acceptance length, full drafts", "specbench", "1 + mean of a where d = gamma", full_drafts_length),
    Metric("decoded tokens an iteration", "NVIDIA TensorRT-LLM, avgDecodedTokensPerIter, averaged over requests",
           "mean over requests of Σe / N", mean_request_length),
    Metric("acceptance rate", "specbench; vLLM V1, draft acceptance rate", "Σa / Σd", draft_acceptance_rate),
    Metric("acceptance rate, mean of requests", "benchmarks that average requests", "mean over requests of Σa / Σd",
           mean_request_rate),
    Metric("accept rate", "SGLang since spec_num_correct_drafts", "Σa / (N gamma)", nominal_rate),
    Metric("accept rate, first form", "SGLang's first spec_accept_rate", "(Σa + N) / (N (gamma + 1))", slots_filled),
    Metric("tokens accepted over K + 1", "Chen et al. 2302.01318, figure 1", "(Σa + N) / (N (gamma + 1))",
           slots_filled),
    Metric("alpha, tested tokens", "Leviathan et al. 2211.17192, definition of alpha as E(beta)", "Σa / Σ(a + [a<d])",
           tested_rate),
    Metric("alpha, implied", "Leviathan et al. 2211.17192, equation 1 solved for alpha",
           "(1 - alpha^(gamma+1)) / (1 - alpha) = 1 + mean of a where d = gamma", implied_alpha),
    Metric("drafts accepted whole", "transformers: makes num_assistant_tokens grow (heuristic schedule)",
           "#{a=d, d>0} / #{d>0}", whole_drafts),
)  # fmt: skip


# --- Rates by position i = 1..gamma in the block ---


def joint_rates(log: StepLog) -> list[Value]:
    """#{a >= i} / #{d >= i}: of the blocks that drafted i tokens. specbench's joint_rates."""
    return [_ratio((log.accepted >= i).sum(), (log.drafted >= i).sum()) for i in range(1, log.gamma + 1)]


def joint_rates_of_all_drafts(log: StepLog) -> list[Value]:
    """#{a >= i} / #{d > 0}: vLLM's per-position acceptance rate; drafts cut short lower it at late positions."""
    return [_ratio((log.accepted >= i).sum(), (log.drafted > 0).sum()) for i in range(1, log.gamma + 1)]


def conditional_rates(log: StepLog) -> list[Value]:
    """#{a >= i} / #{d >= i, a >= i - 1}: of the blocks that reached position i. Leviathan's beta by position."""
    reached = [(log.drafted >= i) & (log.accepted >= i - 1) for i in range(1, log.gamma + 1)]
    return [_ratio((log.accepted >= i).sum(), tested.sum()) for i, tested in enumerate(reached, start=1)]


POSITION_METRICS = (
    ("joint", "specbench", "#{a>=i} / #{d>=i}", joint_rates),
    ("joint, all drafts", "vLLM V1, per-position acceptance rate", "#{a>=i} / #{d>0}", joint_rates_of_all_drafts),
    ("conditional", "specbench; beta by position (Leviathan et al.)", "#{a>=i} / #{d>=i, a>=i-1}", conditional_rates),
)


def all_metrics(steps: pd.DataFrame, gamma: int) -> pd.DataFrame:
    """Every metric of METRICS for one run: name, owner, formula, value (NaN where undefined)."""
    log = StepLog.of(steps, gamma)
    return pd.DataFrame(
        [{"name": m.name, "owner": m.owner, "formula": m.formula, "value": m.compute(log)} for m in METRICS]
    ).astype({"value": float})


def opposite_rankings(runs: Sequence[tuple[str, pd.DataFrame]], tolerance: float = 1e-9) -> list[tuple[str, ...]]:
    """Pairs of runs that two metrics rank differently: (first, second, metric of one order, metric of the other).

    Args:
        runs: name and all_metrics of each.
        tolerance: relative difference up to which two values are a tie, which contradicts nothing.
    """
    found = []
    for (first, a), (second, b) in combinations(runs, 2):
        difference = b["value"] - a["value"]
        sign = np.sign(difference).where(difference.abs() > tolerance * a["value"].abs(), 0)
        higher, lower = a["name"][sign > 0], a["name"][sign < 0]
        found += [(first, second, str(up), str(down)) for up in higher for down in lower]
    return found
