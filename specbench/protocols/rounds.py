"""Decoding the same batches both ways under the clock, in paired rounds.

A batch here is what is timed as one: requests side by side, or more of them, of which some are side by side at any
time and others take the places of ended ones (a continuous batch).

In a round every batch is decoded plainly and speculatively, one right after the other and in alternating order, so
that a machine that warms up or is disturbed treats both alike. A round repeats the very work of the first: its texts
have to be the first round's. Further rounds follow while they scatter more than TOLERANCE; metrics/speed.py says what
comes of them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from specbench.core.checks import MOST_ROUNDS, check_count, check_seconds
from specbench.core.errors import ConfigError
from specbench.core.machine import ranks
from specbench.core.machine.devices import synchronize
from specbench.core.machine.journal import Journal
from specbench.core.machine.progress import track
from specbench.decoding import Completion, Decoder, Request
from specbench.metrics.disturbance import Disturbance, DisturbanceWatch
from specbench.metrics.request_latency import RequestTimes
from specbench.metrics.speed import Rounds, speed_of

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
    """One batch decoded one way, with its seconds and steps."""

    completions: list[Completion]
    seconds: float
    steps: int

    @property
    def tokens(self) -> int:
        return sum(len(completion.token_ids) for completion in self.completions)


@dataclass(frozen=True)
class RoundSettings:
    """How often batches are decoded.

    Attributes:
        rounds: at least so often.
        max_rounds: at most, where rounds scatter.
        seconds: no further round begins that would end later than so long after the first began; 0 is no limit.
    """

    rounds: int
    max_rounds: int
    seconds: float | int

    def __post_init__(self) -> None:
        check_count("protocol.rounds", self.rounds, 1, MOST_ROUNDS)
        check_count("protocol.max_rounds", self.max_rounds, 1, MOST_ROUNDS)
        check_seconds("protocol.seconds", self.seconds)
        if self.max_rounds < self.rounds:
            remedy = f"Use {self.rounds} or more, or fewer rounds."
            raise ConfigError("protocol.max_rounds", self.max_rounds, f"below protocol.rounds={self.rounds}", remedy)


@dataclass(frozen=True)
class DecoderFacts:
    """What the decoders of timed rounds say beside times and texts.

    Attributes:
        engine: its name.
        preparation: seconds of preparing steps, of both decoders.
        step_sizes: see DecodingEngine.batch_sizes.
        phases: seconds of the speculative decoder by phase, over all rounds.
        prompts, plain_prompts: seconds of feeding prompts, over all rounds.
    """

    engine: str = ""
    preparation: float = 0.0
    step_sizes: list[int] = field(default_factory=list)
    phases: dict[str, float] = field(default_factory=dict)
    prompts: float = 0.0
    plain_prompts: float = 0.0

    @staticmethod
    def of(plain: Decoder, speculative: Decoder) -> DecoderFacts:
        engine = speculative.engine
        return DecoderFacts(
            engine.name,
            engine.preparation + plain.engine.preparation,
            list(engine.batch_sizes),
            dict(speculative.stopwatch.seconds),
            speculative.prompt_seconds,
            plain.prompt_seconds,
        )


@dataclass(frozen=True)
class TimedRounds:
    """What rounds of decoding left.

    Attributes:
        first: plainly and speculatively decoded batches of the first round.
        times: of all rounds.
        differing: texts of later rounds, both ways together, that are not the first round's.
        disturbance: what other processes took meanwhile.
        request_times: of all rounds, of the speculatively decoded requests; None if they were not recorded.
        facts: of both decoders.
        shared: RunRow's columns of rounds that jobs share; empty for others.
    """

    first: list[tuple[Timed, Timed]]
    times: Rounds
    differing: int
    disturbance: Disturbance
    request_times: RequestTimes | None = None
    facts: DecoderFacts = field(default_factory=DecoderFacts)
    shared: Mapping[str, int] = field(default_factory=dict)

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
    before = decoder.steps
    synchronize(decoder.components.target.device)
    started = time.perf_counter()
    completions = decoder.run(batch, at_once)
    synchronize(decoder.components.target.device)
    return Timed(completions, time.perf_counter() - started, decoder.steps - before)


def _paired_round(
    plain: Decoder,
    speculative: Decoder,
    batches: Sequence[Sequence[Request]],
    number: int,
    at_once: int,
    live: LiveSpeed,
) -> list[tuple[Timed, Timed]]:
    """Every batch decoded plainly and speculatively; which comes first alternates over batches and rounds."""
    pairs = []
    speculative.forget()
    for place, batch in enumerate(track(batches, f"decoding, round {number + 1}")):
        decoders = (plain, speculative) if (place + number) % 2 == 0 else (speculative, plain)
        timed = {decoder: decode_timed(decoder, batch, at_once) for decoder in decoders}
        pairs.append((timed[plain], timed[speculative]))
        live.add(*pairs[-1])
    return pairs


def times_of(rounds: Sequence[Sequence[tuple[Timed, Timed]]]) -> Rounds:
    """The times of some rounds of the same batches."""
    numbers = np.array([[[s.tokens, s.seconds, p.tokens, p.seconds] for p, s in pairs] for pairs in rounds])
    return Rounds(*(numbers[:, :, i] for i in range(4)))


def seconds_of(text: Completion) -> tuple[float, float]:
    """Seconds from the start of a request to its first token, and to its end."""
    return (text.first_token or text.started) - text.started, (text.ended or text.started) - text.started


def request_times_of(rounds: Sequence[Sequence[tuple[Timed, Timed]]]) -> RequestTimes:
    """Returns the times of the speculatively decoded requests of some rounds; all of them have ended."""
    texts = [[text for _, timed in pairs for text in timed.completions] for pairs in rounds]
    first, end = (np.array([[seconds_of(text)[i] for text in row] for row in texts]) for i in (0, 1))
    tokens = [[len(text.token_ids) for text in row] for row in texts]
    return RequestTimes(first, end, np.array(tokens))


def timed_rounds(
    plain: Decoder,
    speculative: Decoder,
    batches: Sequence[Sequence[Request]],
    settings: RoundSettings,
    at_once: int = 0,
    journal: Journal | None = None,
) -> TimedRounds:
    """Rounds of decoding, more of them where they scatter; see the module.

    Args:
        at_once: requests of a batch that are decoded side by side; 0 is all.
        journal: gets the speed so far after each batch.
    """
    live = LiveSpeed(journal or Journal())
    watch = DisturbanceWatch(plain.components.target.device.type == "cpu", torch.get_num_threads())
    started = time.perf_counter()
    rounds = [_paired_round(plain, speculative, batches, 0, at_once, live)]
    while len(rounds) < settings.max_rounds:
        expected = (time.perf_counter() - started) * (len(rounds) + 1) / len(rounds)
        steady = (speed_of(times_of(rounds)).round_error or 0.0) <= TOLERANCE
        enough = bool(len(rounds) >= settings.rounds and (steady or 0 < settings.seconds < expected))
        if ranks.broadcast_from_rank0(lambda enough=enough: enough):  # clocks differ
            break
        rounds.append(_paired_round(plain, speculative, batches, len(rounds), at_once, live))
    seen = watch.ended()
    written = [[text for pair in pairs for way in pair for text in way.completions] for pairs in rounds]
    differing = [
        old.token_ids != new.token_ids or old.steps != new.steps
        for later in written[1:]
        for old, new in zip(written[0], later, strict=True)
    ]
    facts = DecoderFacts.of(plain, speculative)
    return TimedRounds(rounds[0], times_of(rounds), sum(differing), seen, request_times_of(rounds), facts)


def warm_rounds(
    plain: Decoder,
    speculative: Decoder,
    groups: Sequence[Sequence[Request]],
    settings: RoundSettings,
    at_once: int,
    warmup: int = 1,
    journal: Journal | None = None,
) -> TimedRounds:
    """Decodes in paired rounds, once both decoders have memory for all requests and have decoded the first batch.

    Args:
        at_once, journal: see :func:`timed_rounds`.
        warmup: times that the first batch is decoded both ways, untimed.
    """
    requests = [request for group in groups for request in group]
    for decoder in (speculative, plain):
        decoder.reserve(requests, at_once)
    for _ in range(warmup):
        plain.run(groups[0][:at_once])
        speculative.run(groups[0][:at_once])
    speculative.clear_times()
    plain.clear_times()
    return timed_rounds(plain, speculative, groups, settings, at_once, journal)
