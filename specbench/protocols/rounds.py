"""Decoding the same batches both ways under the clock, in paired rounds.

A batch here is what is timed as one: requests side by side, or more of them, of which some are side by side at any
time and others take the places of ended ones (a continuous batch).

In a round every batch is decoded plainly and speculatively, one right after the other and in alternating order, so
that a machine that warms up or is disturbed treats both alike. A round repeats the very work of the first: its texts
have to be the first round's. Further rounds follow while they scatter more than TOLERANCE; metrics/speed.py says what
comes of them.
"""

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch

from specbench.core.machine import ranks
from specbench.core.machine.devices import synchronize
from specbench.core.machine.journal import Journal
from specbench.core.machine.progress import track
from specbench.decoding import Completion, Decoder, Request
from specbench.decoding.step_result import PHASES
from specbench.metrics.disturbance import Disturbance, DisturbanceWatch
from specbench.metrics.intervals import columns
from specbench.metrics.request_latency import RequestTimes
from specbench.metrics.speed import Rounds, speed_of
from specbench.protocols.settings import RoundSettings

TOLERANCE = 0.01  # of the speedup: its standard error by the scatter of rounds, above which there are more of them
ROUNDS = "rounds.parquet"


@dataclass(frozen=True)
class RoundRow:
    """One batch decoded one way in one round."""

    round: int
    batch: int
    way: str  # plain, speculative
    tokens: int
    seconds: float


@dataclass(frozen=True)
class Timed:
    """One batch decoded one way, with its seconds and steps.

    Attributes:
        phases: of the seconds, by phase of a step.
        prompts: of the phases' seconds, those of feeding prompts, which are no step's.
    """

    completions: list[Completion]
    seconds: float
    steps: int
    phases: Mapping[str, float] = field(default_factory=dict)
    prompts: float = 0.0

    @property
    def tokens(self) -> int:
        return sum(len(completion.token_ids) for completion in self.completions)


Pair = tuple[Timed, Timed]  # a batch, decoded plainly and speculatively
Decode = Callable[[Sequence[Request]], Timed]  # one way to decode a batch


@dataclass(frozen=True)
class TimedRounds:
    """What rounds of decoding left.

    Attributes:
        rounds: of each round the batches, always the same ones.
        disturbance: what other processes took meanwhile.
        columns: RunRow's columns of the decoders' engines, and of rounds that jobs share.
    """

    rounds: Sequence[Sequence[Pair]]
    disturbance: Disturbance
    columns: Mapping[str, Any] = field(default_factory=dict)

    @property
    def first(self) -> Sequence[Pair]:
        """The first round, whose texts and acceptance are the run's."""
        return self.rounds[0]

    @cached_property
    def times(self) -> Rounds:
        return times_of(self.rounds)

    @cached_property
    def differing(self) -> int:
        """How many texts of later rounds, both ways together, are not the first round's."""
        first, *later = ([text for pair in pairs for way in pair for text in way.completions] for pairs in self.rounds)
        both = (couple for texts in later for couple in zip(first, texts, strict=True))
        return sum(old.token_ids != new.token_ids or old.steps != new.steps for old, new in both)

    @property
    def request_times(self) -> RequestTimes:
        """The times of the speculatively decoded requests of all rounds."""
        texts = [[text for _, timed in pairs for text in timed.completions] for pairs in self.rounds]
        first, end = (np.array([[seconds_of(text)[i] for text in row] for row in texts]) for i in (0, 1))
        return RequestTimes(first, end, np.array([[len(text.token_ids) for text in row] for row in texts]))

    @property
    def prompts(self) -> tuple[float, float]:
        """Seconds of feeding prompts plainly and speculatively, over all rounds."""
        plain, speculative = zip(*itertools.chain(*self.rounds), strict=True)
        return sum(timed.prompts for timed in plain), sum(timed.prompts for timed in speculative)

    def rows(self) -> list[RoundRow]:
        """A row a batch, way and round."""
        ways = {
            "plain": (self.times.plain_tokens, self.times.plain_seconds),
            "speculative": (self.times.tokens, self.times.seconds),
        }
        return [
            RoundRow(r, b, way, int(tokens[r, b]), float(seconds[r, b]))
            for r, b in np.ndindex(self.times.seconds.shape)
            for way, (tokens, seconds) in ways.items()
        ]


def speed_fields(timed: TimedRounds) -> dict[str, Any]:
    """RunRow's columns of speed, and of what the time of a step is made of: seconds of feeding prompts, which are no
    step's, each group's steps, and how many requests were in a step.

    Phases and prompts are over all rounds; the row has the share of them that its own seconds are of all rounds'.
    """
    speed, times = speed_of(timed.times), timed.times
    every = [group.phases for _, group in itertools.chain(*timed.rounds)]
    phases = {phase: sum(of_group.get(phase, 0.0) for of_group in every) for phase in PHASES}
    plain_prompts, prompts = timed.prompts
    seconds, plain_seconds = float(speed.seconds.sum()), float(speed.plain_seconds.sum())
    tokens, plain_tokens = int(speed.tokens.sum()), int(speed.plain_tokens.sum())
    share, plain_share = seconds / float(times.seconds.sum()), plain_seconds / float(times.plain_seconds.sum())
    plain_first, first = zip(*timed.first, strict=True)
    return {
        **timed.columns,
        "seconds": seconds,
        "tokens_per_second": tokens / seconds,
        "plain_tokens": plain_tokens,
        "plain_seconds": plain_seconds,
        "plain_tokens_per_second": plain_tokens / plain_seconds,
        **columns("speedup", speed.speedup),
        **{f"seconds_{phase}": share * phases[phase] for phase in PHASES},
        "seconds_rest": seconds - share * sum(phases.values()),
        "rounds": len(times.seconds),
        "round_error": speed.round_error,
        "plain_round_error": speed.plain_round_error,
        "batch_tokens": speed.tokens.astype(int).tolist(),
        "batch_seconds": speed.seconds.tolist(),
        "batch_plain_tokens": speed.plain_tokens.astype(int).tolist(),
        "batch_plain_seconds": speed.plain_seconds.tolist(),
        **vars(timed.disturbance),
        "differing_texts": timed.differing,
        "seconds_prompts": share * prompts,
        "plain_seconds_prompts": plain_share * plain_prompts,
        "batch_steps": [group.steps for group in first],
        "batch_plain_steps": [group.steps for group in plain_first],
        "requests_per_step": requests_per_step(first),
        "plain_requests_per_step": requests_per_step(plain_first),
    }


def requests_per_step(groups: Sequence[Timed]) -> float:
    """How many requests a step advanced, on average: batch_size if the batch was full to the end."""
    return sum(len(c.steps) for group in groups for c in group.completions) / sum(group.steps for group in groups)


class LiveSpeed:
    """Adds up what was decoded, and writes speed and acceptance so far (specbench/core/machine/journal.py)."""

    def __init__(self, journal: Journal):
        self.journal = journal
        self.requests = self.tokens = self.plain_tokens = self.steps = self.accepted = 0
        self.seconds = self.plain_seconds = 0.0

    def add(self, plain: Timed, speculative: Timed) -> None:
        """Writes a line after a batch that was decoded both ways."""
        texts = speculative.completions
        self.requests += len(texts)
        self.tokens += speculative.tokens
        self.seconds += speculative.seconds
        self.plain_tokens += plain.tokens
        self.plain_seconds += plain.seconds
        self.steps += sum(len(text.steps) for text in texts)
        self.accepted += sum(step.num_accepted for text in texts for step in text.steps)
        self.journal.note(
            requests=self.requests,
            tokens=self.tokens,
            tokens_per_second=self.tokens / self.seconds if self.seconds else None,
            plain_tokens_per_second=self.plain_tokens / self.plain_seconds if self.plain_seconds else None,
            acceptance_length=1 + self.accepted / self.steps if self.steps else None,
        )


def decode_timed(decoder: Decoder, batch: Sequence[Request], at_once: int = 0) -> Timed:
    """Decodes one batch to its end under the clock, ``at_once`` requests at a time (0: all)."""
    decoder.clear_times()
    synchronize(decoder.components.target.device)
    started = time.perf_counter()
    completions = decoder.run(batch, at_once)
    synchronize(decoder.components.target.device)
    seconds = time.perf_counter() - started
    return Timed(completions, seconds, decoder.steps, decoder.stopwatch.seconds, decoder.stopwatch.prompt_seconds)


def engine_columns(decoder: Decoder) -> dict[str, Any]:
    engine = decoder.engine
    return {"engine": engine.name, "seconds_prepared": engine.preparation, "step_sizes": list(engine.batch_sizes)}


def paired_round(
    plain: Decode, other: Decode, batches: Sequence[Sequence[Request]], number: int, what: str = "decoding"
) -> Iterator[Pair]:
    """Every batch decoded both ways; which comes first alternates over batches and rounds.

    Args:
        number: of the round, from 0.
        what: names the work for the user who waits for it.
    """
    for place, batch in enumerate(track(batches, f"{what}, round {number + 1}")):
        ways = (plain, other) if (place + number) % 2 == 0 else (other, plain)
        timed = {way: way(batch) for way in ways}
        yield timed[plain], timed[other]


def times_of(rounds: Sequence[Sequence[Pair]]) -> Rounds:
    """The times of some rounds of the same batches."""
    numbers = np.array([[[s.tokens, s.seconds, p.tokens, p.seconds] for p, s in pairs] for pairs in rounds])
    return Rounds(*(numbers[:, :, i] for i in range(4)))


def seconds_of(text: Completion) -> tuple[float, float]:
    """Seconds from the start of a request to its first token, and to its end."""
    return (text.first_token or text.started) - text.started, (text.ended or text.started) - text.started


def timed_rounds(
    plain: Decoder,
    speculative: Decoder,
    batches: Sequence[Sequence[Request]],
    settings: RoundSettings,
    at_once: int = 0,
    warmup: int = 1,
    journal: Journal | None = None,
) -> TimedRounds:
    """Rounds of decoding, more of them where they scatter; see the module.

    Args:
        at_once: requests of a batch that are decoded side by side; 0 is all.
        warmup: times that the first batch is decoded both ways before, untimed.
        journal: gets the speed so far after each batch.
    """
    width = at_once or max(map(len, batches))
    for decoder in (speculative, plain):
        decoder.reserve([request for batch in batches for request in batch], width)
    for _ in range(warmup):
        plain.run(batches[0][:width])
        speculative.run(batches[0][:width])
    live = LiveSpeed(journal or Journal())
    plainly, speculatively = (partial(decode_timed, decoder, at_once=at_once) for decoder in (plain, speculative))

    def decoded(number: int) -> list[Pair]:
        speculative.forget()
        pairs = []
        for pair in paired_round(plainly, speculatively, batches, number):
            live.add(*pair)
            pairs.append(pair)
        return pairs

    watch = DisturbanceWatch(plain.components.target.device.type == "cpu", torch.get_num_threads())
    started = time.perf_counter()
    rounds = [decoded(0)]
    while len(rounds) < settings.max_rounds:
        expected = (time.perf_counter() - started) * (len(rounds) + 1) / len(rounds)
        steady = (speed_of(times_of(rounds)).round_error or 0.0) <= TOLERANCE
        enough = bool(len(rounds) >= settings.rounds and (steady or 0 < settings.seconds < expected))
        if ranks.broadcast_from_rank0(lambda enough=enough: enough):  # clocks differ
            break
        rounds.append(decoded(len(rounds)))
    columns = engine_columns(speculative)
    columns["seconds_prepared"] += plain.engine.preparation
    return TimedRounds(rounds, watch.ended(), columns)
