"""How long attention alone takes, ours and PyTorch's, over batches, draft lengths and contexts.

Prints attention_latency.csv, from the root of a checkout:

    python -m experiments.decode_speed.attention_latency --commit $(git rev-parse --short HEAD)

Rounds go through all cases and ways, every second one backwards, with new numbers and lengths each time. Each result is
held to the plain twin in float64, the call is captured as a graph and replayed with the cache flushed, and what a last
replay writes is held to it again. A way that is wrong has no time, and the exit status is 1. ``ratio`` is the time over
the byte floor: the keys and values that the lengths need, at the copy bandwidth measured in the same run.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import inspect
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from experiments.decode_speed.attention_cases import AttentionCase, AttentionSpec, expected, largest_error, make_case
from specbench.benchmark.timed import TimedCalls, round_trip
from specbench.benchmark.timer import FEWEST, DeviceTimer, calls_by_host
from specbench.core.machine.devices import choose_device
from specbench.metrics.intervals import columns, ratio_of_medians
from specbench.models import plain_attention

OURS = "ours"
Way = Callable[[AttentionCase], Callable[[], Tensor]]


class LeftOutError(Exception):
    """A way that does not do a case; the message says why."""


def ours(case: AttentionCase) -> Callable[[], Tensor]:
    """Returns what models run here: the Triton kernel on a GPU, its plain twin elsewhere."""
    return _with_places(case, plain_attention.chosen(case.query, case.value))


def plain(case: AttentionCase) -> Callable[[], Tensor]:
    """Returns the kernel's plain twin: PyTorch's attention, where the heads that share keys are rows of one matrix."""
    if plain_attention.chosen(case.query, case.value) is plain_attention.attend:
        raise LeftOutError("it is what ours runs here")
    return _with_places(case, plain_attention.attend)


def sdpa(case: AttentionCase) -> Callable[[], Tensor]:
    """Returns scaled_dot_product_attention over the whole cache, with a boolean mask and enable_gqa."""
    _refuse_softcap(case)

    def call() -> Tensor:
        out = scaled_dot_product_attention(
            case.query, case.key, case.value, attn_mask=case.mask, scale=case.scale, enable_gqa=True
        )
        return out.transpose(1, 2).contiguous()

    return call


def sdpa_repeated(case: AttentionCase) -> Callable[[], Tensor]:
    """Returns the same with keys and values repeated for each head in every call, as many models do it."""
    _refuse_softcap(case)
    group = case.spec.heads // case.spec.key_heads

    def call() -> Tensor:
        key, value = (tensor.repeat_interleave(group, dim=1) for tensor in (case.key, case.value))
        out = scaled_dot_product_attention(case.query, key, value, attn_mask=case.mask, scale=case.scale)
        return out.transpose(1, 2).contiguous()

    return call


def flash(case: AttentionCase) -> Callable[[], Tensor]:
    """Returns PyTorch's flash attention for requests of different lengths, torch.nn.attention.varlen.

    It gets the keys of all requests one after the other, without the places that are not filled.
    """
    if case.query.device.type != "cuda":
        raise LeftOutError("PyTorch has it on GPUs alone")
    if case.query.dtype == torch.float32:
        raise LeftOutError("it takes numbers of 16 bits alone")
    if case.spec.tree:
        raise LeftOutError("it has no masks, which trees need")
    _refuse_softcap(case)
    from torch.nn.attention import varlen  # here: so that releases that lack or move it keep the other ways

    attend: Any = varlen.varlen_attn
    # PyTorch 2.11 has no such argument, and shares the heads of keys unasked.
    shared = {"enable_gqa": True} if "enable_gqa" in inspect.signature(attend).parameters else {}
    batch, n, lengths = case.spec.batch_size, case.spec.tokens, case.lengths.tolist()
    query = case.query.transpose(1, 2).flatten(0, 1).contiguous()
    key, value = (
        torch.cat([tensor[b, :, :length].transpose(0, 1) for b, length in enumerate(lengths)])
        for tensor in (case.key, case.value)
    )
    ends = torch.nn.functional.pad(case.lengths.cumsum(0), (1, 0)).int()
    query_ends = torch.arange(0, batch * n + 1, n, device=query.device, dtype=torch.int32)
    window = (-1 if case.spec.window is None else case.spec.window - 1, 0)

    def call() -> Tensor:
        most = (n, case.spec.context)
        out = attend(query, key, value, query_ends, ends, *most, scale=case.scale, window_size=window, **shared)
        return out.unflatten(0, (batch, n))

    return call


# Masks and layouts are made before the clock starts: the layers of a model share a mask, and a cache could be laid out
# as a way wants it. All calls give [B, n, heads, size] in one piece, as a model's next product takes it.
WAYS: dict[str, Way] = {OURS: ours, "plain": plain, "sdpa": sdpa, "sdpa_repeated": sdpa_repeated, "flash": flash}


def _with_places(case: AttentionCase, attend: Callable[..., Tensor]) -> Callable[[], Tensor]:
    return lambda: attend(case.query, case.key, case.value, case.places, **case.options)


def _refuse_softcap(case: AttentionCase) -> None:
    if case.spec.softcap is not None:
        raise LeftOutError("it has no argument for a softcap")


@dataclass
class TimedWay(TimedCalls):
    """One way in one case: why it is left out, what was wrong with a result, and its largest error so far."""

    case: int
    spec: AttentionSpec
    way: str
    skipped: str | None = None
    wrong: str | None = None
    error: float = 0.0

    def right(self, error: float, when: str) -> bool:
        """Notes the error of a result, and returns whether rounding explains it."""
        self.error = max(error, self.error)
        if error > self.spec.tolerance:
            self.wrong = f"{when} is off by {error:.1e}, and rounding explains {self.spec.tolerance:.0e}"
        return self.wrong is None

    def time(self, timer: DeviceTimer, case: AttentionCase, options: argparse.Namespace) -> None:
        """Adds the times of a round, unless a result is wrong."""
        call, exact = WAYS[self.way](case), expected(case)
        if not self.right(largest_error(call(), exact), "the first call"):
            return
        captured = timer.capture(call)
        self.repeats = self.repeats or timer.repeats(captured, call, options.seconds, options.replays)
        times = timer.device_times(captured, call, self.repeats)
        if not self.right(largest_error(last_result(captured.outcome, captured.graph, call), exact), "what was timed"):
            return
        host_calls = calls_by_host(times, options.seconds, 5)
        self.add(captured, times, timer.host_times(call, host_calls), case.floor_bytes)


def last_result(written: Tensor, graph: Any, call: Callable[[], Tensor]) -> Tensor:
    """Returns what one more replay of the graph writes over NaN; without a graph, what one more call gives."""
    if graph is None:
        return call()
    written.fill_(math.nan)
    graph.replay()
    return written


def measured(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Times every way in every case and yields their rows. Ways that are wrong or left out are named on stderr."""
    device = choose_device(options.device)
    shape = {name: getattr(options, name) for name in ("shortest", "heads", "key_heads", "head_size", "window")}
    shape |= {"softcap": options.softcap, "tree": options.tree, "dtype": options.dtype}
    specs = [AttentionSpec(*sizes, **shape) for sizes in product(options.batches, options.gammas, options.contexts)]
    cases = [[TimedWay(number, spec, way) for way in options.ways] for number, spec in enumerate(specs)]
    timer = DeviceTimer(device, options.flush)
    bandwidth, empty = timer.copy_bandwidth(), timer.empty_graph_us()
    for number, ways in round_trip(cases, options.rounds, options.budget):
        case = make_case(ways[0].spec, options.seed, number, device)
        for way in ways if number % 2 == 0 else reversed(ways):
            if way.skipped or way.wrong:
                continue
            try:
                way.time(timer, case, options)
            except (LeftOutError, RuntimeError, ImportError) as error:
                if way.way == OURS and not isinstance(error, torch.OutOfMemoryError):  # a fault of ours is an error
                    raise
                way.skipped = str(error).partition("\n")[0]
    hardware = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    for ways in cases:
        for way in ways:
            if problem := way.wrong or way.skipped:
                print(f"{way.way}, case {way.case}: {problem}", file=sys.stderr)
                continue
            yield {
                **{"case": way.case, "way": way.way, **dataclasses.asdict(way.spec), "tokens": way.spec.tokens},
                **{"tolerance": way.spec.tolerance, "error": way.error, "flush": options.flush},
                **{"empty_graph_us": empty, "copy_bandwidth": bandwidth, **way.columns(bandwidth, options.seed)},
                **against(ways, way, options.seed),
                **{"hardware": hardware, "commit": options.commit},
            }
    if any(way.wrong for ways in cases for way in ways):
        raise SystemExit(1)


def against(ways: Sequence[TimedWay], way: TimedWay, seed: int) -> dict[str, float | None]:
    """Returns the ratio of its median to that of ours in the same case; None for ours, and if ours has no times."""
    base = next((other for other in ways if other.way == OURS and other is not way and not other.wrong), None)
    if base is None:
        return dict.fromkeys(("times_ours", "times_ours_low", "times_ours_high"))
    return columns("times_ours", ratio_of_medians(np.array(way.device_us), np.array(base.device_us), seed))


def main(argv: Sequence[str] | None = None) -> None:
    """Prints the rows as CSV."""
    parser = argparse.ArgumentParser(prog="attention_latency", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 64], help="requests")
    parser.add_argument("--gammas", type=int, nargs="+", default=[0, 4], help="drafted tokens; attention sees one more")
    parser.add_argument("--contexts", type=int, nargs="+", default=[1024, 8192], help="places of the longest request")
    parser.add_argument("--shortest", type=float, default=0.5, help="length of the shortest request over the longest")
    parser.add_argument("--heads", type=int, default=32, help="of queries; the shape of Llama 3 8B")
    parser.add_argument("--key-heads", type=int, default=8)
    parser.add_argument("--head-size", type=int, default=128)
    parser.add_argument("--window", type=int, help="tokens that a query sees, itself among them; else all")
    parser.add_argument("--softcap", type=float, help="bound of scaled products, as in Gemma 2")
    parser.add_argument("--tree", action="store_true", help="each new token is followed by two others")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", choices=("float32", "float16", "bfloat16"), default="bfloat16")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--replays", type=int, default=20, help=f"of a round, case and way, at most; {FEWEST} or more")
    parser.add_argument("--seconds", type=float, default=0.2, help="of a round, case and way, at most about")
    parser.add_argument("--budget", type=float, default=90.0, help="seconds; the first round is always completed")
    parser.add_argument("--flush", default="write", choices=("write", "read"), help="how the cache is flushed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--commit", default="")
    writer = None
    for row in measured(parser.parse_args(argv)):
        if writer is None:
            writer = csv.DictWriter(sys.stdout, row)
            writer.writeheader()
        writer.writerow(row)


if __name__ == "__main__":
    main()
