"""Several settings of a sweep in rounds that they share, so that a change of the machine meets all of them.

A round takes one group of requests and decodes it plainly and with every setting, one right after the other in an order
that is drawn for each round. Groups come in an order that is drawn once. Settings are compared at looks, which come
after FIRST rounds and whenever there are half as many more (metrics/ranking.py says how). A setting that is shown to be
slower than another ends there. Rounds end if the winner or a tie is decided and the interval of its speedup is narrow
enough, if all groups are decoded, or if ``protocol.seconds`` are over.

Each round is a line of a file in the folder of the job that began, at once: its times, texts and step logs. A job whose
rounds are there reads them, be it a job that was killed and is resumed, or the next job of the sweep.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock
from rich.table import Table
from rich.text import Text

from specbench.core.errors import ConfigError, SpecbenchError
from specbench.core.machine.disk import writing
from specbench.core.machine.journal import TOGETHER
from specbench.core.machine.progress import console, progress, say
from specbench.core.machine.provenance import environment
from specbench.core.rounding import speedup
from specbench.decoding import Completion, Decoder, Request, Step
from specbench.metrics.disturbance import Disturbance, DisturbanceWatch
from specbench.metrics.ranking import TIE, SettingTimes, look
from specbench.metrics.speed import Rounds, speed_of
from specbench.protocols.base import Together
from specbench.protocols.live import LiveSpeed
from specbench.protocols.model_context import ModelContext
from specbench.protocols.rounds import DecoderFacts, Timed, TimedRounds, decode_timed, request_times_of, times_of

FIRST = 6  # rounds before settings are compared for the first time
GROWTH = 1.5  # rounds of a look over those of the look before
PLAIN = -1  # in the place of a job's number
SAME = ("commit", "hardware", "device", "torch")  # what rounds must have in common to be continued

Requests = Sequence[Sequence[Request]]


@dataclass
class Shared:
    """Shared rounds, as their file has them.

    Attributes:
        jobs: that take part, by number, with the facts of their decoders; PLAIN is one of them.
        rounds: by job, what it decoded in each round, and its facts there.
        failed: why jobs take part no longer.
        seen: what other processes took meanwhile.
        spent: seconds of all rounds.
        ended: why there are no more rounds; empty while there are.
    """

    path: Path
    where: dict[str, Any]
    jobs: dict[int, dict[str, Any]] = field(default_factory=dict)
    rounds: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)
    seen: Disturbance = field(default_factory=Disturbance)
    spent: float = 0.0
    ended: str = ""

    @staticmethod
    def read(path: Path) -> Shared | None:
        """What a file has; None if it has no whole first line."""
        lines = []
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                lines.append(json.loads(line))
            except ValueError:  # its process was killed while it wrote; what stands behind it was written later
                continue
        if not lines or "where" not in lines[0]:
            return None
        shared = Shared(path, lines[0]["where"])
        for line in lines:
            shared.take(line)
        return shared

    def take(self, line: dict[str, Any]) -> None:
        """Adds a line of the file."""
        self.jobs |= {int(job): facts for job, facts in line.get("jobs", {}).items()}
        self.failed |= {int(job): why for job, why in line.get("failed", {}).items()}
        for job, decoded in line.get("round", {}).items():
            self.rounds.setdefault(int(job), []).append(decoded)
        if "round" in line:
            self.seen, self.spent = Disturbance(**line["seen"]), self.spent + line["seconds"]
        self.ended = line.get("ended", "")

    def write(self, **line: Any) -> None:
        """Adds a line to the file, and to this. Raises WriteError."""
        text = json.dumps(line)
        with writing(self.path), self.path.open("a", encoding="utf-8") as file:
            file.write(f"\n{text}")  # behind a line that was cut off
        self.take(json.loads(text))

    def times(self, job: int) -> Rounds:
        """Of a setting and of plain decoding beside it, group by group, as one round."""
        pairs = zip(self.rounds[job], self.rounds[PLAIN], strict=False)
        numbers = [[_tokens(own), own["seconds"], _tokens(plain), plain["seconds"]] for own, plain in pairs]
        return Rounds(*np.array(numbers, dtype=float).T[:, None, :])

    def standing(self) -> Standing:
        """Which settings are still compared after these rounds, and how they compare."""
        count, points, due = len(self.rounds.get(PLAIN, ())), list[int](), FIRST
        while due <= count:
            points.append(due)
            due = math.ceil(GROWTH * due)
        if self.ended and count > max(1, *points, 1):
            points.append(count)
        settings = [job for job in self.jobs if job != PLAIN and job not in self.failed]
        standing = Standing(settings, {}, None, False, 0)
        for number, rounds in enumerate(points, 1):
            if standing.active:
                standing = self._after(standing, number, rounds, len(self.jobs) - 1)
        return standing

    def _after(self, before: Standing, number: int, rounds: int, among: int) -> Standing:
        batches = [np.concatenate(list(vars(self.times(job)).values()))[:, :rounds] for job in before.active]
        found = look([SettingTimes.shared(each, number, 0) for each in batches], among)
        looks = before.looks | dict.fromkeys(before.active, number)
        active = [job for place, job in enumerate(before.active) if place not in found.beaten]
        return Standing(active, looks, before.active[found.best], found.tied, number)

    def ending(self, groups: int, seconds: float | int) -> str:
        """Why no further round begins; empty if one does.

        Raises:
            ConfigError: too few seconds for two rounds, without which there is no interval.
        """
        count, standing = len(self.rounds.get(PLAIN, ())), self.standing()
        if not standing.active:
            return "no setting is left"
        if count == groups:
            return "all texts are decoded"
        if standing.best is not None and standing.tied:
            speed = speed_of(self.times(standing.best)).speedup
            if speed.high / speed.value <= 1 + TIE:
                return "it is decided" if len(standing.active) == 1 else f"they are as fast, within {TIE:.0%}"
        expected = self.spent * (count + 1) / count if count else 0.0
        if seconds and expected > seconds:
            if count < 2:
                problem = f"too short: a round of {len(standing.active)} settings takes {self.spent:.1f} s"
                remedy = f"Use {math.ceil(FIRST * self.spent)} or more, 0 for no limit, or fewer settings or tokens."
                raise ConfigError("protocol.seconds", seconds, problem, remedy)
            return f"{seconds:g} s are over"
        return ""


@dataclass(frozen=True)
class Standing:
    """How settings compare after some rounds.

    Attributes:
        active: jobs that are not shown to be slower than another.
        looks: by job, the number of its last look.
        best: of the active, the one of the highest speedup; None before the first look.
        tied: whether all other active ones are shown to be within TIE of it.
        number: of the last look.
    """

    active: list[int]
    looks: dict[int, int]
    best: int | None
    tied: bool
    number: int


@dataclass(frozen=True)
class SharedTimes:
    """What shared rounds have of one job.

    Attributes:
        timed: its groups, as one round.
        facts: of its decoders.
        looks: the number of its last look.
        rounds_of: the job in whose folder the rounds are.
    """

    timed: TimedRounds
    facts: DecoderFacts
    looks: int
    rounds_of: int


def shared_rounds(context: ModelContext, groups: Requests, seconds: float | int, warmup: int) -> SharedTimes:
    """The job's part in shared rounds, which are begun or continued here if they are not there.

    Args:
        groups: requests that are timed as one.
        seconds: of all rounds; 0 is no limit.
        warmup: times that the first group is decoded before.

    Raises:
        ConfigError: too few seconds.
        WriteError: the file cannot be written.
    """
    together = context.together
    assert together is not None, "made by runs/building.py"
    groups = [groups[place] for place in np.random.default_rng(context.seed).permutation(len(groups))]
    now = environment(context.device)
    where = {key: str(now[key]) for key in SAME}
    path = _found(together, where) or together.sweep / str(together.number) / TOGETHER
    with writing(path):
        lock = FileLock(path.with_suffix(".lock"))
        lock.acquire()
    try:
        shared = Shared.read(path) if path.exists() else None
        if shared is None or shared.where != where:
            path.unlink(missing_ok=True)
            shared = Shared(path, where)
        if not shared.ended:
            _decode(shared, context, groups, seconds, warmup)
    finally:
        lock.release()
    return _part(shared, context, groups)


def _found(together: Together, where: dict[str, Any]) -> Path | None:
    """The file of rounds in which the job takes part; None if there is none, or of another machine or version."""
    for path in sorted(together.sweep.glob(f"*/{TOGETHER}")):
        shared = Shared.read(path)
        if shared and shared.where == where and together.number in shared.jobs and together.number not in shared.failed:
            return path
    return None


def _decode(shared: Shared, context: ModelContext, groups: Requests, seconds: float | int, warmup: int) -> None:
    """Rounds until they end; each is written when it is over."""
    together, begun = context.together, bool(shared.jobs)
    assert together is not None
    jobs = shared.standing().active if begun else list(together.jobs)
    decoders, labels, failed = _decoders(context, jobs, groups, warmup)
    if not begun:
        facts = {job: _facts(decoder, labels.get(job, "plain")) for job, decoder in decoders.items()}
        shared.write(where=shared.where, jobs=facts)
        many = f"{len(decoders) - 1} settings and plain decoding take turns" if len(jobs) > 1 else "one setting"
        limit = f", at most {seconds:g} s" if seconds else ""
        say(f"{many}: up to {len(groups)} rounds of {len(groups[0])} text{'s'[: len(groups[0]) > 1]}{limit}")
    if failed:
        shared.write(failed=failed)
    live = LiveSpeed(context.journal)
    watch, before = DisturbanceWatch(context.device.type == "cpu", torch.get_num_threads()), shared.seen
    shown, done = 0, len(shared.rounds.get(PLAIN, ()))
    with progress("comparing settings", len(groups)) as advance:
        advance(done)
        while not (why := shared.ending(len(groups), seconds)):
            ways = [PLAIN, *shared.standing().active]
            number = len(shared.rounds.get(PLAIN, ()))
            order = np.random.default_rng([context.seed, number]).permutation(ways).tolist()
            decoded, began = {}, time.perf_counter()
            for job in order:
                try:
                    decoded[job] = _decoded(decoders[job], groups[number], context.batch_size)
                except Exception as error:
                    if job in (PLAIN, together.number):
                        raise
                    shared.write(failed={job: _words(error)})
            took = time.perf_counter() - began
            shared.write(round=decoded, seconds=took, seen=vars(_worse(before, watch.ended())))
            advance(1)
            if together.number in decoded:
                timed, plain = (_timed(decoded[job], groups[number], context) for job in (together.number, PLAIN))
                live.decoded(timed.completions, timed.seconds, (plain.tokens, plain.seconds))
            if (standing := shared.standing()).number > shown:
                shown = standing.number
                _show(shared, standing)
    shared.write(ended=why)
    say(f"{len(shared.rounds[PLAIN])} rounds in {shared.spent:.0f} s: {why}")


def _decoders(
    context: ModelContext, jobs: Sequence[int], groups: Requests, warmup: int
) -> tuple[dict[int, Decoder], dict[int, str], dict[int, str]]:
    """Decoders that are warm, by job, their settings in words, and why others cannot take part."""
    together, failed = context.together, dict[int, str]()
    assert together is not None
    decoders, labels = {PLAIN: context.decoder(0)}, dict[int, str]()
    requests = [request for group in groups for request in group]
    for job in jobs:
        try:
            other = context if job == together.number else together.context_of(job)
            decoders[job], labels[job] = other.decoder(), other.title
            decoders[job].reserve(requests, context.batch_size)
        except SpecbenchError as error:
            if job == together.number:
                raise
            failed[job] = str(error)
            decoders.pop(job, None)
    decoders[PLAIN].reserve(requests, context.batch_size)
    for job, decoder in list(decoders.items()):
        try:
            for _ in range(warmup):
                decoder.run(groups[0][: context.batch_size])
        except Exception as error:
            if job in (PLAIN, together.number):
                raise
            failed[job] = _words(error)
            del decoders[job]
    return decoders, labels, failed


def _words(error: Exception) -> str:
    return str(error) if isinstance(error, SpecbenchError) else f"{type(error).__name__}: {error}"


def _facts(decoder: Decoder, label: str) -> dict[str, Any]:
    engine = decoder.engine
    return {"label": label, "engine": engine.name, "preparation": engine.preparation, "sizes": list(engine.batch_sizes)}


def _decoded(decoder: Decoder, group: Sequence[Request], at_once: int) -> dict[str, Any]:
    """A group, decoded under the clock, as JSON has it."""
    decoder.clear_times()
    timed = decode_timed(decoder, group, at_once)
    texts = [
        {
            "token_ids": text.token_ids,
            "finished": text.finished,
            "stop_reason": text.stop_reason,
            "characters": text.characters,
            "first_token": (text.first_token or text.started) - text.started,
            "ended": (text.ended or text.started) - text.started,
            "steps": [list(vars(step).values())[2:] for step in text.steps],
        }
        for text in timed.completions
    ]
    phases = dict(decoder.stopwatch.seconds)
    return {"seconds": timed.seconds, "steps": timed.steps, "phases": phases, "prompts": decoder.prompt_seconds,
            "texts": texts}  # fmt: skip


def _timed(decoded: dict[str, Any], group: Sequence[Request], context: ModelContext) -> Timed:
    """The inverse of :func:`_decoded`."""
    completions = []
    for request, text in zip(group, decoded["texts"], strict=True):
        steps = [Step(request.name, number, *step) for number, step in enumerate(text["steps"])]
        fields = {name: text[name] for name in ("token_ids", "finished", "stop_reason", "characters")}
        times = {name: text[name] for name in ("first_token", "ended")}
        completions.append(Completion(request, **fields, **times, steps=steps, tokenizer=context.pair.tokenizer))
    return Timed(completions, decoded["seconds"], decoded["steps"])


def _tokens(decoded: dict[str, Any]) -> int:
    return sum(len(text["token_ids"]) for text in decoded["texts"])


def _worse(one: Disturbance, other: Disturbance) -> Disturbance:
    """Of two stretches of the rounds, before and after a resumption, what disturbed more."""
    pairs = zip(vars(one).values(), vars(other).values(), strict=True)
    return Disturbance(*(max((each for each in pair if each is not None), default=None) for pair in pairs))


def _part(shared: Shared, context: ModelContext, groups: Requests) -> SharedTimes:
    assert context.together is not None
    job = context.together.number
    own, plain = shared.rounds[job], shared.rounds[PLAIN]
    pairs = [
        (_timed(without, group, context), _timed(one, group, context))
        for one, without, group in zip(own, plain, groups, strict=False)
    ]
    facts, phases = shared.jobs[job], dict[str, float]()
    for each in own:
        phases = {name: phases.get(name, 0.0) + seconds for name, seconds in (phases | each["phases"]).items()}
    return SharedTimes(
        TimedRounds(pairs, times_of([pairs]), 0, shared.seen, request_times_of([pairs])),
        DecoderFacts(
            facts["engine"],
            facts["preparation"] + shared.jobs[PLAIN]["preparation"],
            facts["sizes"],
            phases,
            sum(each["prompts"] for each in own),
            sum(each["prompts"] for each in plain[: len(own)]),
        ),
        shared.standing().looks.get(job, 0),
        int(shared.path.parent.name),
    )


def _show(shared: Shared, standing: Standing) -> None:
    """Prints how the settings compare so far."""
    count = len(shared.rounds[PLAIN])
    table = Table(title=Text(f"after {count} rounds and {shared.spent:.0f} s"))
    for name in ("setting", "rounds", "tokens a step", "times plain decoding", ""):
        table.add_column(name, justify="left" if name in ("setting", "") else "right")
    for job, decoded in sorted(shared.rounds.items()):
        if job == PLAIN or job in shared.failed:
            continue
        speed = speed_of(shared.times(job)).speedup
        tokens, steps = sum(map(_tokens, decoded)), sum(len(t["steps"]) for each in decoded for t in each["texts"])
        word = "highest so far" if job == standing.best else "" if job in standing.active else "slower: ended"
        told = speedup(speed.value, speed.low, speed.high)
        table.add_row(*map(Text, (shared.jobs[job]["label"], f"{len(decoded)}", f"{tokens / steps:.2f}", told, word)))
    console.print(table)
