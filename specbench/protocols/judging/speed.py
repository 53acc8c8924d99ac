"""Acceptance by the engine's own counters, beside what replay predicts for the same prompts, and tokens a second with
and without speculation in paired rounds."""

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from specbench.core.errors import OutageError, SpecbenchError
from specbench.core.machine.progress import say
from specbench.core.rounding import interval
from specbench.exactness.two_sample.pairs import words_of
from specbench.metrics.intervals import Estimate, ratio_of_sums
from specbench.metrics.speed import Rounds, speed_of
from specbench.protocols.judging.finding import MEASURED, RECORDED, Finding, not_asked
from specbench.protocols.judging.sampler import JudgedPrompt, Sampler
from specbench.protocols.judging.text_scorer import TextScorer
from specbench.replay.renewal import replay
from specbench.replay.trace import Identity, Trace
from specbench.sources import Mode, TextCompletion

QUESTION = "What does the engine accept, and how much faster is it?"
SPEED = "judge_speed.parquet"
IMPOSSIBLE = -80.0  # log p of tokens that the checkpoint excludes, for replay
PREDICTED = "predicted by the checkpoints"
BATCHES = 8  # in which the prompts are timed


@dataclass(frozen=True)
class SpeedRow:
    """A number with its 95% interval, under the definition of METRICS of metrics/definitions.py by that name.

    Attributes:
        low, high: None where there is no interval.
    """

    name: str
    definition: str
    value: float
    low: float | None
    high: float | None


def judge_speed(
    sampler: Sampler,
    prompts: Sequence[JudgedPrompt],
    length: int,
    rounds: int,
    checkpoint: TextScorer | None,
    gamma: int,
) -> Finding:
    """Decodes the prompts both ways, ``rounds`` times.

    Args:
        checkpoint: with a draft, it scores the plain texts for replay.
        gamma: tokens drafted a step, of the prediction.
    """
    if not rounds:
        return not_asked(QUESTION, "protocol.rounds is 0.")
    if getattr(sampler.source, "recorded", False):
        return not_asked(QUESTION, RECORDED)
    if not prompts:
        return not_asked(QUESTION, "The source has no prompts to be timed with.")
    batches = [prompts[i :: min(BATCHES, len(prompts))] for i in range(min(BATCHES, len(prompts)))]
    times, words = np.zeros((4, rounds, len(batches))), np.zeros((2, rounds, len(batches)))
    texts: dict[Mode, list[TextCompletion]] = {mode: [] for mode in Mode}
    before: dict[str, float] = {}
    try:
        for number in range(-1, rounds):  # the first is for warming up
            if number == 0:
                before = _totals(sampler)
            for place, batch in enumerate(batches):
                for mode in list(Mode)[:: 1 if (place + number) % 2 else -1]:
                    requests = [sampler.request(prompt, f"speed {number}", length, mode) for prompt in batch]
                    started = time.perf_counter()
                    completions = sampler.source.complete(requests, mode)
                    seconds = time.perf_counter() - started
                    if number < 0:
                        continue
                    side = 0 if mode is Mode.SPECULATIVE else 1
                    times[2 * side : 2 * side + 2, number, place] = sum(map(_tokens, completions)), seconds
                    words[side, number, place] = sum(len(words_of(text.text)) for text in completions)
                    texts[mode] += completions
    except OutageError:
        raise
    except SpecbenchError as error:
        return not_asked(QUESTION, f"The source cannot be timed ({error}).")
    totals = {name: value - before.get(name, 0.0) for name, value in _totals(sampler).items()}
    try:
        predicted = predicted_rows(checkpoint, texts[Mode.PLAIN], gamma) if checkpoint is not None else []
    except SpecbenchError as error:
        say(f"no acceptance is predicted ({error})")
        predicted = []
    unit = "tokens"
    if np.isnan(times[::2]).any():
        unit, times[::2] = "words", words
    return _finding([*_acceptance(texts[Mode.SPECULATIVE], totals), *predicted, *_speeds(times, unit)])


def _totals(sampler: Sampler) -> dict[str, float]:
    return dict(getattr(sampler.source, "totals", {}).get(Mode.SPECULATIVE, {}))


def predicted_rows(checkpoint: TextScorer, texts: Sequence[TextCompletion], gamma: int) -> list[SpeedRow]:
    """What a sound engine accepts in expectation, replayed on plain texts; [] without a draft.

    Plain texts follow the target, whatever speculation does to the others. An engine drafts tokens drawn from the draft
    (rule token), or its likeliest ones, which are accepted if the target draws them as well (rule argmax).
    Replay drafts from the first token on; many engines do from the second.
    """
    scored = [(text, score) for text, score in zip(texts, checkpoint.score(texts), strict=True) if len(score.tokens)]
    if not scored or "log_q" not in scored[0][1].columns:
        return []
    columns = {name: np.concatenate([score.columns[name] for _, score in scored]) for name in scored[0][1].columns}
    columns["log_p"] = np.maximum(columns["log_p"], IMPOSSIBLE)
    trace = Trace(
        Identity(checkpoint.name, "", {}, "float32", "protocol=judge"),
        [text.request.prompt_id for text, _ in scored],
        np.cumsum([0, *(len(score.tokens) for _, score in scored)]),
        np.concatenate([score.tokens for _, score in scored]),
        columns,
        np.array([max(text.request.max_new_tokens, len(score.tokens)) for text, score in scored]),
    )
    rows = []
    for rule, drafts in (("token", "drawn"), ("argmax", "likeliest")):
        (result,) = replay(trace, rule, [gamma])
        rate = ratio_of_sums(result.accepted, result.drafted, trace.prompts)
        length = ratio_of_sums(result.accepted + result.steps, result.steps, trace.prompts)
        ending = f"{PREDICTED}, drafts {drafts}"
        rows += _row(f"acceptance rate, {ending}", f"Σa / Σd, replayed with gamma {gamma}", rate)
        rows += _row(f"acceptance length, {ending}", f"(Σa + N) / N, replayed with gamma {gamma}", length)
    return rows


def _tokens(completion: TextCompletion) -> float:
    """The number of tokens of a text; NaN if the engine does not return their ids."""
    return math.nan if completion.token_ids is None else float(len(completion.token_ids))


def _acceptance(texts: Sequence[TextCompletion], totals: dict[str, float]) -> list[SpeedRow]:
    """Rates of what texts counted, or else of what the server counted for all together.

    Intervals are over prompts: the texts of all rounds have the same ones.
    """
    prompts: list[str] | None = [text.request.prompt_id for text in texts]
    counted = {
        name: np.array([text.counters.get(name, math.nan) for text in texts])
        for name in ("drafted", "accepted", "steps")
    }
    if np.isnan(counted["accepted"]).all():
        counted, prompts = {name: np.array([totals.get(name, math.nan)]) for name in counted}, None
    drafted, accepted, steps = counted.values()
    tokens = np.array([_tokens(text) for text in texts], dtype=float)
    rows = []
    if not np.isnan(drafted + accepted).any() and drafted.sum():
        rows += _row("acceptance rate", "Σa / Σd", ratio_of_sums(accepted, drafted, prompts))
        if len(drafted) > 1:
            rates = np.divide(accepted, drafted, out=np.zeros(len(drafted)), where=drafted > 0)
            mean = ratio_of_sums(rates, drafted > 0, prompts)
            rows += _row("acceptance rate, mean of requests", "mean over requests of Σa / Σd", mean)
    if not np.isnan(steps).any() and steps.sum():
        rows += _row("acceptance length", "(Σa + N) / N", ratio_of_sums(accepted + steps, steps, prompts))
        if len(steps) == len(tokens) and not np.isnan(tokens).any():
            rows += _row("mean accepted tokens", "Σe / N", ratio_of_sums(tokens, steps, prompts))
    return rows


def _speeds(times: np.ndarray, unit: str) -> list[SpeedRow]:
    if not (times > 0).all():
        return []
    speed = speed_of(Rounds(*times))
    one, other = speed.tokens.sum() / speed.seconds.sum(), speed.plain_tokens.sum() / speed.plain_seconds.sum()
    fast = SpeedRow(f"{unit} a second, speculative", "specbench/metrics/speed.py", float(one), None, None)
    plain = SpeedRow(f"{unit} a second, plain", "specbench/metrics/speed.py", float(other), None, None)
    return [fast, plain, *_row("speedup", "ratio of both", speed.speedup)]


def _row(name: str, definition: str, estimate: Estimate | None) -> list[SpeedRow]:
    """The row of a number; none if the number is not known."""
    if estimate is None or math.isnan(estimate.value):
        return []
    ends = [None if math.isnan(end) else end for end in (estimate.low, estimate.high)]
    return [SpeedRow(name, definition, estimate.value, *ends)]


def _finding(rows: Sequence[SpeedRow]) -> Finding:
    if not rows:
        return not_asked(QUESTION, "The engine counts nothing, and returned no tokens.")
    values = [f"{row.name} {interval(row.value, row.low, row.high, '.3g')}" for row in rows]
    numbers = {row.name: asdict(row) for row in rows}
    answer = f"{'; '.join(values)}."
    return Finding(question=QUESTION, verdict=MEASURED, answer=answer, numbers=numbers, rows={SPEED: list(rows)})
