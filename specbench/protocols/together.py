"""Several settings of a sweep in rounds that they share, so that a change of the machine meets all of them.

A round takes one group of requests and decodes it plainly and with every setting, one right after the other in an order
that is drawn for each round. Groups come in an order that is drawn once. Settings are compared at looks, which come
after 12 rounds and whenever there are half as many more (metrics/ranking.py says how). A setting that is shown to be
slower than another ends there. Rounds end if the winner or a tie is decided and the interval of its speedup is narrow
enough, if all groups are decoded, or if ``protocol.seconds`` are over.

Each round is a line of a file in the folder of the job that began, at once: its times, texts and step logs. A job whose
rounds are there reads them, be it a job that was killed and is resumed, or the next job of the sweep.
"""

import math
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from rich.table import Table
from rich.text import Text

from specbench.core.errors import message_of
from specbench.core.machine.disk import locked
from specbench.core.machine.journal import TOGETHER
from specbench.core.machine.progress import console, progress, say
from specbench.core.machine.provenance import environment
from specbench.core.rounding import speedup
from specbench.decoding import Decoder, Request
from specbench.metrics.disturbance import Disturbance, DisturbanceWatch
from specbench.metrics.ranking import Standing
from specbench.metrics.speed import speed_of
from specbench.protocols.model_context import ModelContext
from specbench.protocols.protocol import Together
from specbench.protocols.rounds import LiveSpeed, TimedRounds, engine_columns
from specbench.protocols.together_file import PLAIN, Shared, decode_group

SAME = ("commit", "hardware", "device", "torch")  # what rounds must have in common to be continued

Requests = Sequence[Sequence[Request]]


def shared_rounds(context: ModelContext, groups: Requests, seconds: float | int, warmup: int) -> TimedRounds:
    """The job's part in shared rounds, which are begun or continued here if they are not there.

    Args:
        groups: requests that are timed as one.
        seconds: of all rounds; 0 is no limit.
        warmup: times that the first group is decoded before.

    Raises:
        ConfigError: too few seconds.
        WriteError: the file cannot be written.
    """
    assert context.folder is not None, "a job's"
    own = int(context.folder.name)
    groups = [groups[place] for place in np.random.default_rng(context.seed).permutation(len(groups))]
    now = environment(context.device)
    where = {key: str(now[key]) for key in SAME}

    def at(path: Path) -> Shared:
        return Shared(path, where, groups, context.pair.tokenizer)

    earlier = (shared for shared in map(at, sorted(context.folder.parent.glob(f"*/{TOGETHER}"))) if shared.read(own))
    path = next((shared.path for shared in earlier if own not in shared.failed), context.folder / TOGETHER)
    with locked(path.with_suffix(".lock")):
        shared = at(path)
        if not shared.read(own):
            path.unlink(missing_ok=True)
        if not shared.ended:
            _decode(shared, context, own, seconds, warmup)
    columns = {
        **shared.jobs[own]["columns"],
        "seconds_prepared": sum(shared.jobs[job]["columns"]["seconds_prepared"] for job in (own, PLAIN)),
        "rounds_of": int(shared.path.parent.name),
        "looks": shared.standing().looks.get(own, 0),
    }
    return TimedRounds([shared.pairs(own)], shared.seen, columns)


def _decode(shared: Shared, context: ModelContext, own: int, seconds: float | int, warmup: int) -> None:
    """Rounds until they end; each is written when it is over."""
    together, groups, begun = context.together, shared.groups, bool(shared.jobs)
    assert together is not None, "made by runs/building.py"
    jobs = shared.standing().active if begun else list(together.jobs)
    decoders, labels, failed = _decoders(context, own, together, jobs, groups, warmup)
    if not begun:
        facts = {job: {"label": labels[job], "columns": engine_columns(decoder)} for job, decoder in decoders.items()}
        shared.write(where=shared.where, jobs=facts)
        many = f"{len(decoders) - 1} settings and plain decoding take turns" if len(jobs) > 1 else "one setting"
        limit = f", at most {seconds:g} s" if seconds else ""
        say(f"{many}: up to {len(groups)} rounds of {len(groups[0])} text{'s'[: len(groups[0]) > 1]}{limit}")
    if failed:
        shared.write(failed=failed)
    live = LiveSpeed(context.journal)
    watch, before = DisturbanceWatch(context.device.type == "cpu", torch.get_num_threads()), shared.seen
    shown, done = dict[int, int](), shared.count
    with progress("comparing settings", len(groups), seconds - shared.spent if seconds else math.inf) as advance:
        advance(done)
        while not (why := shared.ending(seconds)):
            ways = [PLAIN, *shared.standing().active]
            number = shared.count
            order = np.random.default_rng([context.seed, number]).permutation(ways).tolist()
            decoded, failed, began = {}, dict[int, str](), time.perf_counter()
            for job in order:
                with _noting(failed, job, own):
                    decoded[job] = decode_group(decoders[job], groups[number], context.batch_size)
            took = time.perf_counter() - began
            if failed:
                shared.write(failed=failed)
            shared.write(round=decoded, seconds=took, seen=vars(_worse(before, watch.ended())))
            advance(1)
            if own in decoded:
                live.add(shared.rounds[PLAIN][-1], shared.rounds[own][-1])
            if (standing := shared.standing()).looks != shown:
                shown = standing.looks
                _show(shared, standing)
    shared.write(ended=why)
    say(f"{shared.count} rounds in {shared.spent:.0f} s: {why}")


def _decoders(
    context: ModelContext, own: int, together: Together, jobs: Sequence[int], groups: Requests, warmup: int
) -> tuple[dict[int, Decoder], dict[int, str], dict[int, str]]:
    """Decoders that are warm, by job, their settings in words, and why others cannot take part."""
    decoders, labels, failed = {PLAIN: context.decoder(0)}, {PLAIN: "plain"}, dict[int, str]()
    requests = [request for group in groups for request in group]
    for job in jobs:
        with _noting(failed, job, own):
            other = context if job == own else together.context_of(job)
            decoders[job], labels[job] = other.decoder(), other.title
            decoders[job].reserve(requests, context.batch_size)
    decoders[PLAIN].reserve(requests, context.batch_size)
    for job, decoder in decoders.items():
        with _noting(failed, job, own):
            for _ in range(0 if job in failed else warmup):
                decoder.run(groups[0][: context.batch_size])
    return {job: decoder for job, decoder in decoders.items() if job not in failed}, labels, failed


@contextmanager
def _noting(failed: dict[int, str], job: int, own: int) -> Generator[None]:
    """Notes why another job takes part no longer; an error of this job or of plain decoding ends the run."""
    try:
        yield
    except Exception as error:
        if job in (PLAIN, own):
            raise
        failed[job] = message_of(error)


def _worse(one: Disturbance, other: Disturbance) -> Disturbance:
    """Of two stretches of the rounds, before and after a resumption, what disturbed more."""
    pairs = zip(vars(one).values(), vars(other).values(), strict=True)
    return Disturbance(*(max((value for value in pair if value is not None), default=None) for pair in pairs))


def _show(shared: Shared, standing: Standing) -> None:
    """Prints how the settings compare so far."""
    count = shared.count
    table = Table(title=Text(f"after {count} rounds and {shared.spent:.0f} s"))
    for name in ("setting", "rounds", "tokens a step", "times plain decoding", ""):
        table.add_column(name, justify="left" if name in ("setting", "") else "right")
    for job, decoded in sorted(shared.rounds.items()):
        if job == PLAIN or job in shared.failed:
            continue
        speed = speed_of(shared.times(job)).speedup
        tokens = sum(group.tokens for group in decoded)
        steps = sum(len(text.steps) for group in decoded for text in group.completions)
        word = "highest so far" if job == standing.best else "" if job in standing.active else "slower: ended"
        ratio = speedup(speed.value, speed.low, speed.high)
        table.add_row(*map(Text, (shared.jobs[job]["label"], f"{len(decoded)}", f"{tokens / steps:.2f}", ratio, word)))
    console.print(table)
