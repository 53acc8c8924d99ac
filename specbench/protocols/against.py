"""Other decoders under the clock, on the very requests of a run: transformers' ``generate`` in several ways.

Each is warmed up once, which compiles what it compiles, and then decodes every batch as often as the run's own decoders
did, in turn with plain decoding, so that the ratio of the two speeds is of times taken one right after the other. Its
interval takes batches as independent; those that share a prompt count as one. A speedup is over plain decoding: where
``generate`` is faster than that, the run says so. At temperature 0 the texts must be those of plain decoding: a
benchmark that would not notice a wrong result is none.
"""

import dataclasses
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from specbench.core.errors import ConfigError
from specbench.core.machine.devices import synchronize, texts_repeat
from specbench.core.machine.files import reason
from specbench.core.machine.progress import say
from specbench.decoding import Completion, Decoder, Request
from specbench.metrics.intervals import columns
from specbench.metrics.results import BaselineRow
from specbench.metrics.speed import speed_of
from specbench.models.generate import ASSISTED, WAYS, generate, obstacle
from specbench.protocols.model_context import ModelContext, first_of_units
from specbench.protocols.rounds import Timed, decode_timed, paired_round, times_of

Texts = list[list[int]]


def check_ways(ways: object) -> tuple[str, ...]:
    """The ways to decode that ``protocol.against`` names. Raises ConfigError."""
    remedy = f"Use [], or a list out of {', '.join(WAYS)}."
    if isinstance(ways, str) or not isinstance(ways, Sequence):
        raise ConfigError("protocol.against", ways, "not a list", remedy)
    unknown = [way for way in ways if way not in WAYS]
    if unknown or len(set(ways)) < len(ways):
        raise ConfigError("protocol.against", list(ways), "unknown" if unknown else "repeated", remedy)
    return tuple(ways)


def against(
    context: ModelContext,
    ways: Sequence[str],
    batches: Sequence[Sequence[Request]],
    plain: Texts,
    rounds: int,
    decoder: Decoder,
) -> list[BaselineRow]:
    """Times each way on these batches, and says what came of it.

    Args:
        plain: the texts that plain decoding gave, one a request.
        decoder: decodes plainly.
    """
    rows = []
    for way in ways:
        row = _timed(context, way, batches, plain, rounds, decoder)
        speed = [] if row.tokens_per_second is None else [_speed(row)]
        say(f"{row.name}: {'; '.join([*speed, *filter(None, [row.note])])}")
        rows.append(row)
    return rows


def wrong_texts(rows: Sequence[BaselineRow], device: torch.device, dtype: torch.dtype) -> str | None:
    """Why what was found is an error: a way that failed, or other greedy texts where rounding does not excuse them."""
    failed = [f"{row.name}: {row.note}" for row in rows if row.note.startswith(_FAILED)]
    strict = texts_repeat(device, dtype)
    other = [
        f"{row.name}: {row.texts - row.equal_texts} of {row.texts} texts"
        for row in rows
        if strict and row.equal_texts is not None and row.equal_texts < row.texts
    ]
    if other:
        failed.append(f"greedy texts are not those of plain decoding ({'; '.join(other)}), so that times say nothing")
    return ". ".join(failed) or None


_FAILED = "failed: "


def _speed(row: BaselineRow) -> str:
    """The speed of a way that was timed, and whether it or plain decoding is faster."""
    ratio, low, high = row.times_plain, row.times_plain_low, row.times_plain_high
    text = f"{row.tokens_per_second:.0f} tokens/s, {ratio:.2f}"
    if low is None or high is None:
        return f"{text} times plain decoding; no interval, of one batch or of batches that all share prompts"
    text = f"{text} [{low:.2f}, {high:.2f}] times plain decoding"
    if low > 1:
        return f"{text}: it is faster, and over it the speedup is that much lower"
    return f"{text}{': plain decoding is faster' if high < 1 else ', no difference that chance does not make'}"


def _timed(
    context: ModelContext, way: str, batches: Sequence[Sequence[Request]], plain: Texts, rounds: int, decoder: Decoder
) -> BaselineRow:
    row = BaselineRow(name=way, batch=max(map(len, batches)), texts=len(plain))
    why = _request_obstacle(context, way, batches) or obstacle(
        context.pair, way, row.batch, context.sampling, context.gamma
    )
    if why:
        return dataclasses.replace(row, note=f"not possible: {why}")
    plainly, other = partial(decode_timed, decoder), partial(_decoded, context, way)
    try:
        prepared = other(batches[0]).seconds
        pairs = [list(paired_round(plainly, other, batches, number, way)) for number in range(rounds)]
    except Exception as error:  # transformers' or a compiler's; it must not cost the run what it has measured
        return dataclasses.replace(row, note=f"{_FAILED}{type(error).__name__}: {reason(error)}")
    written, times = [text.token_ids for _, made in pairs[0] for text in made.completions], times_of(pairs)
    tokens, total = sum(map(len, written)), float(np.median(times.seconds, axis=0).sum())
    equal = sum(one == other for one, other in zip(written, plain, strict=True)) if context.sampling.greedy else None
    times_plain: Any = columns("times_plain", speed_of(times.summed(first_of_units(batches))).speedup)
    return dataclasses.replace(
        row,
        tokens=tokens,
        seconds=total,
        tokens_per_second=tokens / total,
        seconds_prepared=prepared,
        rounds=rounds,
        equal_texts=equal,
        note=_note(context, way, equal, row.texts),
        **times_plain,
    )


def _request_obstacle(context: ModelContext, way: str, batches: Sequence[Sequence[Request]]) -> str:
    """What requests have of their own that ``generate`` takes for a whole batch only; empty if nothing."""
    requests = [request for batch in batches for request in batch]
    if way == ASSISTED and any(request.gamma is not None for request in requests):
        return "prompts have gammas of their own"
    mixed = any(request.sampling != context.sampling for request in requests)
    return "prompts have sampling parameters of their own" if mixed else ""


def _decoded(context: ModelContext, way: str, batch: Sequence[Request]) -> Timed:
    """Decodes a batch under the clock. ``generate`` has one length for all: shorter texts are cut, and what was decoded
    beyond their ends is in the time."""
    sampling, longest = context.sampling, max(request.max_new_tokens for request in batch)
    prompts = [request.prompt for request in batch]
    synchronize(context.target.device)
    started = time.perf_counter()
    made = generate(context.pair, way, prompts, sampling, longest, context.gamma, context.seed)
    synchronize(context.target.device)
    seconds = time.perf_counter() - started
    texts = [Completion(request, text[: request.max_new_tokens]) for text, request in zip(made, batch, strict=True)]
    return Timed(texts, seconds, 0)


def _note(context: ModelContext, way: str, equal: int | None, texts: int) -> str:
    parts = []
    if way == "transformers_static" and context.device.type == "cpu":
        parts.append("not compiled, since transformers compiles on a GPU only")
    if equal is not None and equal < texts:
        parts.append(f"{texts - equal} texts are not those of plain decoding")
        if context.device.type != "cpu" or context.target.dtype.itemsize < 4:
            parts.append("on a GPU and in 16 bits rounding does that")
    return "; ".join(parts)
