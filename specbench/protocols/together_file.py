"""The file of rounds that several settings share (together.py): what it has, and how settings compare by it."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from specbench.core.errors import ConfigError
from specbench.core.machine.disk import writing
from specbench.decoding import Completion, Decoder, Request, Step
from specbench.decoding.detokenize import Tokenizer
from specbench.metrics.disturbance import Disturbance
from specbench.metrics.ranking import TIE, Standing, race
from specbench.metrics.speed import Rounds, speed_of
from specbench.protocols.rounds import Pair, Timed, decode_timed, seconds_of, times_of

FIRST = 12  # rounds before settings are compared: intervals of fewer are too narrow where a few prompts are far faster
GROWTH = 1.5  # rounds of a look over those of the look before
PLAIN = -1  # in the place of a job's number
TIMES = ("seconds", "steps", "phases", "prompts")  # of Timed


@dataclass
class Shared:
    """Shared rounds, as their file has them.

    Attributes:
        groups: what each round decodes.
        jobs: that take part, by number, with their labels and the columns of their engines; PLAIN is one of them.
        rounds: by job, what it decoded in each round.
        failed: why jobs take part no longer.
        seen: what other processes took meanwhile.
        spent: seconds of all rounds.
        ended: why there are no more rounds; empty while there are.
    """

    path: Path
    where: dict[str, Any]
    groups: Sequence[Sequence[Request]]
    tokenizer: Tokenizer | None
    jobs: dict[int, dict[str, Any]] = field(default_factory=dict)
    rounds: dict[int, list[Timed]] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)
    seen: Disturbance = field(default_factory=Disturbance)
    spent: float = 0.0
    ended: str = ""

    def read(self, job: int) -> bool:
        """Takes what the file has; False, and nothing taken, if it has rounds without this job or of another place, or
        no whole first line."""
        lines = []
        for line in self.path.read_text(encoding="utf-8").splitlines() if self.path.exists() else ():
            try:
                lines.append(json.loads(line))
            except ValueError:  # its process was killed while it wrote; what stands behind it was written later
                continue
        if not lines or lines[0].get("where") != self.where or str(job) not in lines[0]["jobs"]:
            return False
        for line in lines:
            self.take(line)
        return True

    def take(self, line: dict[str, Any]) -> None:
        self.jobs |= {int(job): facts for job, facts in line.get("jobs", {}).items()}
        self.failed |= {int(job): why for job, why in line.get("failed", {}).items()}
        for job, decoded in line.get("round", {}).items():
            rounds = self.rounds.setdefault(int(job), [])
            rounds.append(timed_of(decoded, self.groups[len(rounds)], self.tokenizer))
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
        """The times of :meth:`pairs`, as one round."""
        return times_of([self.pairs(job)])

    def pairs(self, job: int) -> list[Pair]:
        """Plain decoding and a setting beside it, group by group, as far as the setting got."""
        return list(zip(self.rounds[PLAIN], self.rounds[job], strict=False))

    @property
    def count(self) -> int:
        """How many rounds there are."""
        return len(self.rounds.get(PLAIN, ()))

    def standing(self) -> Standing:
        """Which settings are still compared after these rounds, and how they compare."""
        count, points, due = self.count, list[int](), FIRST
        while due <= count:
            points.append(due)
            due = math.ceil(GROWTH * due)
        if self.ended and count > max([1, *points]):
            points.append(count)
        jobs = [job for job in self.jobs if job != PLAIN and job not in self.failed]
        if not (jobs and points):
            return Standing(jobs)
        return race(
            {job: np.concatenate([*vars(self.times(job)).values()]) for job in jobs}, points, len(self.jobs) - 1
        )

    def ending(self, seconds: float | int) -> str:
        """Why no further round begins; empty if one does.

        Raises:
            ConfigError: too few seconds for two rounds, without which there is no interval.
        """
        count, standing = self.count, self.standing()
        if not standing.active:
            return "no setting is left"
        if count == len(self.groups):
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
            return f"another would pass the limit of {seconds:g} s"
        return ""


def decode_group(decoder: Decoder, group: Sequence[Request], at_once: int) -> dict[str, Any]:
    """A group, decoded under the clock, as JSON has it."""
    timed = decode_timed(decoder, group, at_once)
    texts = [
        {
            "token_ids": text.token_ids,
            "finished": text.finished,
            "stop_reason": text.stop_reason,
            "hidden": text.hidden,
            **dict(zip(("first_token", "ended"), seconds_of(text), strict=True)),
            "steps": [list(vars(step).values())[2:] for step in text.steps],
        }
        for text in timed.completions
    ]
    return {name: getattr(timed, name) for name in TIMES} | {"texts": texts}


def timed_of(decoded: dict[str, Any], group: Sequence[Request], tokenizer: Tokenizer | None) -> Timed:
    """The inverse of :func:`decode_group`."""
    completions = []
    for request, text in zip(group, decoded["texts"], strict=True):
        fields: dict[str, Any] = {
            **text,
            "steps": [Step(request.name, number, *step) for number, step in enumerate(text["steps"])],
        }
        completions.append(Completion(request, **fields, tokenizer=tokenizer))
    return Timed(completions, **{name: decoded[name] for name in TIMES})
