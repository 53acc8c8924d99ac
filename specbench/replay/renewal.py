"""Where blocks start, and what they accept: a renewal equation, solved exactly for all texts at once.

Let w_t be the probability that a block starts at token t of a text. w is 1 at the first token, and a block that starts
at t and accepts k tokens emits k + 1, so that the next one starts at t + k + 1:

    w_s = sum over k of w_(s-1-k) P(tau = k | text, start s-1-k)

for s up to the text's last token; a block that accepts a stop token starts no other. This is a triangular system with
gamma + 1 bands below a diagonal of ones: one BLAS call (dtbsv) a gamma, whatever the texts' lengths. P(tau = k) does
not depend on gamma for k < gamma, so that all gammas share one matrix but for a column.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64
from scipy.linalg import get_blas_funcs

from specbench.replay.survival import replayed, survival
from specbench.replay.trace import Trace
from specbench.rules import RuleInfo

CHUNK = 1 << 16  # tokens worked on at once: 35 MB at gamma 64


@dataclass(frozen=True)
class Replayed:
    """Expected counts of one gamma and rule, given the texts. Blocks cut short by max_new_tokens are included.

    Accepted means kept: an accepted stop token counts, drafted tokens behind it do not, though a verifier may have
    accepted them (in a step log: min(num_accepted, num_emitted)). Drafted are all.

    Attributes:
        histogram: expected number of steps that accepted 0, ..., gamma drafted tokens.
        full_histogram: the same, of the blocks that could draft all gamma tokens.
        stopped: of the histogram, the steps whose last accepted token was the stop token. They emitted what they
            accepted, all others one token more.
        possible: by position i = 1..gamma, expected number of blocks that could draft i tokens.
        tested: of those, the ones that accepted i - 1, none of them the stop token (num_emitted >= i).
        steps: expected number of steps of each text.
        drafted, accepted: expected number of drafted and accepted tokens of each text.
    """

    rule: str
    gamma: int
    histogram: Float64[np.ndarray, " gamma1"]
    full_histogram: Float64[np.ndarray, " gamma1"]
    stopped: Float64[np.ndarray, " gamma1"]
    possible: Float64[np.ndarray, " gamma"]
    tested: Float64[np.ndarray, " gamma"]
    steps: Float64[np.ndarray, " n"]
    drafted: Float64[np.ndarray, " n"]
    accepted: Float64[np.ndarray, " n"]
    tokens: Float64[np.ndarray, " n"]

    @property
    def emitted(self) -> Float64[np.ndarray, " gamma1"]:
        """Expected number of steps that emitted 1, ..., gamma + 1 tokens."""
        return self.histogram - self.stopped + np.append(self.stopped[1:], 0.0)

    @property
    def joint(self) -> Float64[np.ndarray, " gamma"]:
        """Share of the blocks that could draft i tokens that accepted at least i; NaN where there are none."""
        return _ratio(_at_least(self.histogram)[1:], self.possible)

    @property
    def conditional(self) -> Float64[np.ndarray, " gamma"]:
        """Share of the tested blocks that accepted i as well."""
        return _ratio(_at_least(self.histogram)[1:], self.tested)

    @property
    def acceptance_length(self) -> float:
        """Tokens a step: sum of tokens over sum of steps."""
        return float(self.tokens.sum() / self.steps.sum())

    @property
    def full_acceptance_length(self) -> float:
        """1 + mean accepted of full blocks, which a long text would approach; NaN where no text is long enough."""
        return _mean_and_variance(self.full_histogram)[0]

    @property
    def variance(self) -> float:
        """Variance of the number of tokens that a step emits."""
        return _mean_and_variance(self.emitted)[1]


def _mean_and_variance(histogram: np.ndarray) -> tuple[float, float]:
    total, emitted = histogram.sum(), np.arange(1, len(histogram) + 1)
    if total <= 0:
        return float("nan"), float("nan")
    mean = float((histogram * emitted).sum() / total)
    return mean, float((histogram * (emitted - mean) ** 2).sum() / total)


def replay(trace: Trace, rule: RuleInfo | str, gammas: Sequence[int]) -> list[Replayed]:
    """Every gamma from one trace, in the order given.

    Args:
        rule: its RuleInfo, its name, or "argmax" (see survival.py).
        gammas: 0 (plain decoding) to 64.

    Raises:
        ArgumentError, ConfigError: as survival.
    """
    info = replayed(rule)
    parts: list[list[Replayed]] = [[] for _ in gammas]
    for chunk in chunks(trace):
        accepted = survival(chunk, info, max(gammas))
        for place, part in enumerate(_replay_chunk(chunk, info.name, accepted, gammas)):
            parts[place].append(part)
    return [join(part) for part in parts]


def replay_survival(trace: Trace, name: str, accepted: Float64[np.ndarray, "T gamma1"]) -> Replayed:
    """Replays given survival probabilities, as of an adaptive policy, at the gamma that they reach to.

    Drafted, possible and tested are then those of a draft of gamma tokens, which the policy may have cut shorter.
    """
    return next(iter(_replay_chunk(trace, name, accepted, [accepted.shape[1] - 1])))


def chunks(trace: Trace) -> Iterator[Trace]:
    """The trace in pieces of whole texts of about CHUNK tokens."""
    first, texts = 0, len(trace.prompts)
    while first < texts:
        last = int(np.searchsorted(trace.starts, trace.starts[first] + CHUNK, side="right")) - 1
        last = min(max(last, first + 1), texts)
        yield trace.texts(first, last)
        first = last


def block_starts(
    trace: Trace, accepted: Float64[np.ndarray, "T gamma1"], gammas: Sequence[int]
) -> Iterator[Float64[np.ndarray, " T"]]:
    """w of each gamma: the probability that a block starts at each token."""
    count, largest = len(trace), accepted.shape[1] - 1
    remaining = trace.remaining
    # bands[t, d] = -P(a block at t moves on by d tokens); the transposed array is in the order that BLAS reads.
    bands = np.empty((count, largest + 2))
    bands[:, 0] = 1.0
    bands[:, 1:-1] = accepted[:, 1:] - accepted[:, :-1]
    bands[:, -1] = -accepted[:, -1]
    for behind in (0, 1):  # a step that ends its text starts no other, be the last token emitted or an accepted stop
        ends = np.flatnonzero(remaining + behind <= largest + 1)
        bands[ends, remaining[ends] + behind] = 0.0
    first = np.zeros(count)
    first[trace.starts[:-1]] = 1.0
    solve = get_blas_funcs("tbsv", dtype=np.float64)
    for gamma in gammas:
        kept = bands[:, gamma + 1].copy()
        bands[:, gamma + 1] = np.where(remaining > gamma + 1, -accepted[:, gamma], 0.0)
        yield solve(gamma + 1, bands.T, first, lower=1, diag=1)
        bands[:, gamma + 1] = kept


def _replay_chunk(
    trace: Trace, rule: str, accepted: Float64[np.ndarray, "T gamma1"], gammas: Sequence[int]
) -> Iterator[Replayed]:
    draft_limits, limits, remaining = trace.draft_limits, trace.acceptance_limits, trace.remaining
    tokens = trace.lengths.astype(float)
    starts = np.stack(list(block_starts(trace, accepted, gammas)))
    reached, full = starts @ accepted, (starts * (draft_limits >= np.array(gammas)[:, None])) @ accepted

    def by_text(values: np.ndarray) -> np.ndarray:
        return np.add.reduceat(values, trace.starts[:-1])

    for i, gamma in enumerate(gammas):
        drafted = np.minimum(draft_limits, gamma)
        # Blocks that accepted all that the text tells of, perhaps with the stop token: nothing more was tested.
        ended = np.flatnonzero(limits <= gamma)
        through = np.zeros(len(trace))
        through[ended] = starts[i, ended] * accepted[ended, limits[ended]]
        by_stop = through * (limits == remaining)
        yield Replayed(
            rule,
            gamma,
            _masses(reached[i, : gamma + 1]),
            _masses(full[i, : gamma + 1]),
            _counts(limits[ended], by_stop[ended], gamma),
            _at_least(_counts(drafted, starts[i], gamma))[1:],
            reached[i, :gamma] - _counts(limits[ended], through[ended], gamma)[:gamma],
            by_text(starts[i]),
            by_text(starts[i] * drafted),
            tokens - by_text(starts[i]) + by_text(by_stop),
            tokens,
        )


def _masses(reached: Float64[np.ndarray, " gamma1"]) -> Float64[np.ndarray, " gamma1"]:
    return reached - np.append(reached[1:], 0.0)


def _counts(values: np.ndarray, weights: np.ndarray, gamma: int) -> Float64[np.ndarray, " gamma1"]:
    return np.bincount(values, weights=weights, minlength=gamma + 1).astype(float)  # whole numbers where it is empty


def _at_least(counts: np.ndarray) -> np.ndarray:
    return counts[::-1].cumsum()[::-1]


def _ratio(top: np.ndarray, bottom: np.ndarray) -> np.ndarray:
    return np.divide(top, bottom, out=np.full(len(top), np.nan), where=bottom > 1e-12)


def join(parts: Sequence[Replayed]) -> Replayed:
    """Chunks of one trace as one."""
    summed = {
        name: np.sum([getattr(part, name) for part in parts], axis=0)
        for name in ("histogram", "full_histogram", "stopped", "possible", "tested")
    }
    per_text = {
        name: np.concatenate([getattr(part, name) for part in parts])
        for name in ("steps", "drafted", "accepted", "tokens")
    }
    return Replayed(parts[0].rule, parts[0].gamma, **summed, **per_text)
