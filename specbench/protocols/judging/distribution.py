"""T > 0: are speculative texts distributed as plain ones? Pairs of texts with seeds of their own, and bets on them."""

import itertools
import math
import operator
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from specbench.core.machine.journal import Journal
from specbench.core.machine.progress import say
from specbench.core.rounding import most
from specbench.exactness.two_sample.bets import BetResults, evidence
from specbench.exactness.two_sample.bounds import BiasRow, bias_rows
from specbench.exactness.two_sample.pairs import KNOWN, TextPairs, Words, text_pairs, words_of
from specbench.exactness.two_sample.power import PowerRow, power_rows
from specbench.metrics.findings import OF_TEXTS as QUESTION
from specbench.protocols.judging.finding import CANNOT_TELL, NOT_REFUTED, REFUTED, Finding, not_asked
from specbench.protocols.judging.sampler import JudgedPrompt, Sampler
from specbench.protocols.judging.text_scorer import TextScorer
from specbench.sources import Mode, TextCompletion
from specbench.sources.file import DISTRIBUTION

FIRST_LOOK = 64  # pairs; looks follow at doubling sizes
BIAS, POWER = "judge_bias.parquet", "judge_power.parquet"
LEAST_ENTROPY = 0.1  # nats a token, below which nothing can be said


@dataclass(frozen=True)
class SampleLimits:
    """How much is sampled, and which errors are allowed.

    Attributes:
        texts: of both modes together, at most.
        seconds: after which no further round of texts begins; 0 is no limit.
        length: tokens of a text.
        false_alarm: chance that a sound engine is refuted.
        power: with which a bias that is said to be found is found, and confidence of bounds.
    """

    texts: int
    seconds: float | int
    length: int
    false_alarm: float
    power: float


@dataclass
class Sampled:
    """Pairs of texts, in the order of sampling."""

    prompts: list[int] = field(default_factory=list)
    counts: Counter[int] = field(default_factory=Counter)  # of pairs, by prompt
    texts: dict[Mode, list[TextCompletion]] = field(default_factory=lambda: {mode: [] for mode in Mode})

    @property
    def by_ids(self) -> list[bool]:
        """Whether each pair is compared by token ids: up to the first pair of which a text has none.

        Later texts thus leave the bets on earlier pairs as they were, and there is one test, with one false alarm.
        """
        have = (all(text.token_ids is not None for text in pair) for pair in zip(*self.texts.values(), strict=True))
        return list(itertools.accumulate(have, operator.and_))

    @property
    def units(self) -> str:
        """What the texts are compared by."""
        by_ids = self.by_ids
        if all(by_ids):
            return "token ids"
        first, missing = sum(by_ids), "since the engine returns no token ids"
        return f"token ids, and words from pair {first + 1:,} on, {missing} there" if first else f"words, {missing}"

    @property
    def unit(self) -> str:
        """What the texts are compared by, as a noun."""
        by_ids = self.by_ids
        return "token" if all(by_ids) else "token or word" if any(by_ids) else "word"

    def pairs(self, length: int, checkpoint: TextScorer | None = None) -> TextPairs:
        """As arrays: token ids, or words behind the last pair that has them. A checkpoint scores texts new to it."""
        by_ids = self.by_ids
        plain, speculative = (
            [_words(text, ids) for text, ids in zip(self.texts[mode], by_ids, strict=True)] for mode in Mode
        )
        pairs = text_pairs(self.prompts, plain, speculative, length)
        if checkpoint is None:
            return pairs
        for mode in Mode:
            checkpoint.add(self.texts[mode][len(checkpoint.texts[mode]) :], mode)
        classes, ratios = checkpoint.marks(length)
        return replace(pairs, classes=classes, ratios=ratios)


def _words(text: TextCompletion, by_ids: bool) -> Words:
    return text.token_ids if by_ids and text.token_ids is not None else words_of(text.text)


def judge_distribution(
    sampler: Sampler,
    prompts: Sequence[JudgedPrompt],
    limits: SampleLimits,
    journal: Journal,
    checkpoint: TextScorer | None = None,
) -> Finding:
    """Samples until the bets reject, or texts or time are used up.

    Args:
        checkpoint: scores the texts, and also ends the sampling if it refutes them.
        journal: receives the number of texts and the evidence after each look.
    """
    if sampler.sampling.greedy:
        return not_asked(QUESTION, "Nothing is drawn at temperature 0.")
    sampled, started, look = Sampled(), time.monotonic(), FIRST_LOOK
    while True:
        ended = not _round(sampler, prompts, sampled, limits)
        ended = ended or (limits.seconds > 0 and time.monotonic() - started > limits.seconds)
        if len(sampled.prompts) < look and not ended:
            continue
        if not sampled.prompts:
            return not_asked(QUESTION, "No prompt_id has drawn texts of both modes.")
        bets = evidence(pairs := sampled.pairs(limits.length, checkpoint))
        journal.note(requests=2 * len(sampled.prompts), log10_evidence=float(bets.log_wealth[-1] / math.log(10)))
        say(f"{2 * len(sampled.prompts):,} texts: log10 of the evidence {bets.log_wealth[-1] / math.log(10):.2f}")
        ended = ended or (checkpoint is not None and checkpoint.refutes(limits.false_alarm))
        if ended or bets.rejected_at(limits.false_alarm):
            return _finding(sampled, pairs, bets, [prompt.name for prompt in prompts], limits, sampler)
        look *= 2


def _round(sampler: Sampler, prompts: Sequence[JudgedPrompt], sampled: Sampled, limits: SampleLimits) -> bool:
    """Samples as many texts of each prompt as the source takes together, in both modes; False if none are left."""
    number, counts = len(sampled.prompts), [sampled.counts[i] for i in range(len(prompts))]
    together = max(1, getattr(sampler.source, "concurrency", 1) // len(prompts))
    left = getattr(sampler.source, "pairs", None)  # of a file
    texts = [(i, count + further) for further in range(together) for i, count in enumerate(counts)]
    texts = [(i, n) for i, n in texts if left is None or n < left.get(prompts[i].name, 0)]
    texts = texts[: max(limits.texts // 2 - number, 0)]
    if not texts:
        return False
    odd = number // (len(prompts) * together) % 2
    for mode in (Mode.PLAIN, Mode.SPECULATIVE) if odd else (Mode.SPECULATIVE, Mode.PLAIN):
        requests = [sampler.request(prompts[i], n, limits.length, mode) for i, n in texts]
        sampled.texts[mode] += sampler.complete(requests, mode, DISTRIBUTION)
    sampled.prompts += [i for i, _ in texts]
    sampled.counts.update(i for i, _ in texts)
    return True


def _finding(
    sampled: Sampled, pairs: TextPairs, bets: BetResults, prompts: list[str], limits: SampleLimits, sampler: Sampler
) -> Finding:
    bias = bias_rows(pairs, bets, prompts, limits.power)
    rejected, whole, unit = bets.rejected_at(limits.false_alarm), bias[0], sampled.unit
    entropy = whole.entropy or 0.0
    numbers = {
        "texts": 2 * len(sampled.prompts),
        "tokens": int((pairs.tokens >= 0).sum()),
        "units": sampled.units,
        "log10_evidence": float(bets.log_wealth.max() / math.log(10)),
        "false_alarm": limits.false_alarm,
        "rejected_after_texts": None if rejected is None else 2 * rejected,
        "strongest": max(bets.bets, key=lambda name: bets.bets[name]),
        "observed": whole.observed,
        "bound": whole.bound,
        "confidence": limits.power,
        "nats_a_token": whole.entropy,
        "distinct_texts": {str(mode): distinct_share(pairs, side) for side, mode in enumerate(Mode)},
    }
    power: list[PowerRow] = []
    if numbers["distinct_texts"][str(Mode.PLAIN)] == 0:
        verdict = CANNOT_TELL
        answer = (
            f"The {len(sampled.prompts):,} plain texts are the same for every seed of a prompt, so that the engine "
            "ignores the temperature or the seeds."
        )
    elif rejected is not None:
        verdict = REFUTED
        observed = whole.observed
        differ = "" if observed is None else f", and shares of classes of {unit}s differ by {observed:.3f} a {unit}"
        answer = (
            f"No: after {2 * rejected:,} texts the evidence against it exceeds {1 / limits.false_alarm:,.0f} to 1, "
            f"most of it from {numbers['strongest']}{differ}."
        )
    elif entropy < LEAST_ENTROPY:
        verdict = CANNOT_TELL
        known = "unknown" if whole.entropy is None else f"{entropy:.2f} nats"
        answer = f"The entropy a {unit} is {known}, and too few texts of a prompt begin likewise or differ."
    else:
        verdict = NOT_REFUTED
        answer = (
            f"No difference was found in {numbers['texts']:,} texts of {numbers['tokens']:,} {unit}s, with "
            f"{entropy:.2f} nats of entropy a {unit}."
        )
        power = power_rows(pairs, limits.false_alarm, limits.power, sampler.seed)
    return Finding(
        question=QUESTION,
        verdict=verdict,
        answer=answer,
        remark=_left_out(getattr(sampler.source, "same_seed", 0)),
        power=_power(power, whole, limits, unit, pairs.classes is None),
        numbers=numbers,
        rows={BIAS: bias, POWER: power},
    )


def _left_out(count: int) -> str:
    """Says how many texts of a file are left out, because an earlier one has their seed."""
    if not count:
        return ""
    return (
        f"{count:,} texts are left out: an earlier text of their prompt and mode has their seed, and texts are taken "
        "as independent only if their seeds differ. If the engine ignored the seed, leave it out of the lines."
    )


def distinct_share(pairs: TextPairs, side: int) -> float:
    """The share of prompts, of those with at least KNOWN pairs, that have different texts; 1 if no prompt has them."""
    shares = []
    for prompt in np.unique(pairs.prompts):
        texts = pairs.tokens[pairs.prompts == prompt, side]
        if len(texts) >= KNOWN:
            shares.append(float((texts != texts[0]).any()))
    return float(np.mean(shares)) if shares else 1.0


def _power(rows: Sequence[PowerRow], whole: BiasRow, limits: SampleLimits, unit: str, guessed: bool) -> str:
    if not rows:
        return ""
    biases = [f"{row.bias:.3f} {row.direction}" for row in rows if row.bias is not None]
    words = f"no bias up to 0.5 a {unit}"
    if biases:
        words = f"a bias a {unit} (total variation) of {' or of '.join(biases)}"
    shares = f"Too few texts agree to bound the shares of classes of {unit}s."
    if whole.bound is not None:
        shares = (
            f"Shares of classes of {unit}s differ by at most {most(whole.bound)} a {unit} ({limits.power:.0%} "
            f"confidence), of the {whole.classified:.0%} of {unit}s before which enough texts agree."
        )
        if guessed:  # wrong guesses mix the classes, and hide a part of the difference
            shares += " Classes are guessed from earlier texts, so that shares of the true ones may differ by more."
    return f"With {limits.power:.0%} probability {words} would have been found, simulated on these texts. {shares}"
