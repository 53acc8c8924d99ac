"""The protocol ``attention_latency``: how long attention alone takes, ours and PyTorch's, over a grid of cases.

Each case is a made-up cache whose requests have lengths of their own (benchmark/attention/cases.py). Rounds go through
all cases and ways, every second one backwards, with new numbers and lengths each time: the result is held to the plain
twin in float64, the call is captured as a graph and replayed with the cache flushed (benchmark/timer.py), what a last
replay writes is held to it again, and a few calls are timed with the host's part included. A way that is wrong once has
no time. Beside the times stands the byte floor: the keys and values that the lengths need, at the copy bandwidth
measured in this very run.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any, ClassVar

import torch
from torch import Tensor

from specbench.benchmark.attention.cases import AttentionCase, AttentionSpec, make_case
from specbench.benchmark.attention.check import expected, largest_error
from specbench.benchmark.attention.measured import MeasuredWay
from specbench.benchmark.attention.ways import OURS, WAYS, LeftOutError
from specbench.benchmark.tables import ATTENTION, ATTENTION_SAMPLES, ATTENTION_SAMPLES_SCHEMA, ATTENTION_SCHEMA
from specbench.benchmark.timed import there_and_back
from specbench.benchmark.timer import DeviceTimer, calls_by_host
from specbench.checks import check_count
from specbench.errors import ConfigError
from specbench.models import plain_attention
from specbench.progress import say
from specbench.protocols.base import Conditions, Outcome, RunContext, Table
from specbench.protocols.settings import check_counts, check_gammas, check_timing

NO_VERIFIER = "Attention is timed alone; leave it out."


class AttentionLatencyProtocol:
    """See the module.

    Args:
        batches, gammas, contexts: the cases, each with each; see AttentionSpec, as for shortest to tree.
        ways: which of WAYS are compared.
        rounds: times that all cases are gone through, each with new numbers.
        replays: at most so many a round, case and way.
        seconds: at most about so long a round, case and way.
        budget: after so many seconds only the first round is still completed.
        host_calls: calls timed with the host's part, a round, case and way.
        flush: how the cache of the device is flushed, "write" or "read" (benchmark/timer.py).
        cpu_numbers: on a CPU, cases with more numbers of keys and values are left out.

    Raises:
        ConfigError: a value that cannot work.
    """

    needs_models = False
    times = True
    own_conditions: ClassVar[Conditions] = {
        "gamma": "Use protocol.gammas.",
        "batch_size": "Use protocol.batches.",
        "sampler": NO_VERIFIER,
        "verifier": NO_VERIFIER,
    }

    def __init__(
        self,
        batches: Sequence[int],
        gammas: Sequence[int],
        contexts: Sequence[int],
        shortest: float,
        heads: int,
        key_heads: int,
        head_size: int,
        window: int | None,
        softcap: float | None,
        tree: bool,
        ways: Sequence[str],
        rounds: int,
        replays: int,
        seconds: float,
        budget: float,
        host_calls: int,
        flush: str,
        cpu_numbers: int,
    ):
        check_timing(rounds, replays, host_calls, seconds, budget)
        check_count("protocol.cpu_numbers", cpu_numbers)
        self.shape: dict[str, Any] = {
            **{"heads": heads, "key_heads": key_heads, "head_size": head_size, "window": window, "softcap": softcap},
            **{"tree": tree, "shortest": shortest},
        }
        self.batches, self.contexts = (
            check_counts("protocol.batches", batches),
            check_counts("protocol.contexts", contexts),
        )
        self.gammas = check_gammas("protocol.gammas", gammas, least=1)
        _check_shape(self.shape, max(self.gammas) + 1, min(self.contexts))
        if softcap is not None:
            self.shape["softcap"] = float(softcap)  # to a kernel a whole number would be another kind of argument
        self.ways = _checked_ways(ways)
        self.rounds, self.replays, self.seconds, self.host_calls = rounds, replays, seconds, host_calls
        self.budget, self.flush, self.cpu_numbers = budget, flush, cpu_numbers

    def run(self, context: RunContext) -> Outcome:
        """Times every way in every case; see :class:`specbench.protocols.base.MeasurementProtocol`.

        Raises:
            ConfigError: nothing could be timed.
        """
        dtype = str(context.dtype).removeprefix("torch.")
        grid = product(self.batches, self.gammas, self.contexts)
        specs = [AttentionSpec(b, gamma, places, **self.shape, dtype=dtype) for b, gamma, places in grid]
        cases = [[MeasuredWay(case, spec, way) for way in self.ways] for case, spec in enumerate(specs)]
        for each in (each for ways in cases for each in ways):
            if context.device.type == "cpu" and each.spec.numbers > self.cpu_numbers:
                each.skipped = f"more than protocol.cpu_numbers={self.cpu_numbers} keys and values, on a CPU"
        timer = DeviceTimer(context.device, self.flush)
        common = {
            "device": str(context.device),
            "flush": self.flush,
            "copy_bandwidth": timer.copy_bandwidth(),
            "empty_graph_us": timer.empty_graph_us(),
        }
        for number, ways in there_and_back(cases, self.rounds, self.budget):
            self._one_round(context, timer, ways, number)
        return self._outcome(cases, common, context.seed)

    def _one_round(self, context: RunContext, timer: DeviceTimer, ways: list[MeasuredWay], number: int) -> None:
        """One case, all ways on the same numbers."""
        left = [each for each in ways if each.skipped is None and each.wrong is None]
        if not left:
            return
        try:
            case = make_case(left[0].spec, context.seed, number, context.device)
            right = expected(case)
        except torch.OutOfMemoryError:
            for each in left:
                each.skipped = "the device's memory does not hold the case"
            return
        for each in left if number % 2 == 0 else reversed(left):
            try:
                self._time(timer, each, case, right)
            except LeftOutError as error:
                each.skipped = str(error)
            except torch.OutOfMemoryError:
                each.skipped = "the device's memory does not hold it"
            except (RuntimeError, ImportError) as error:
                if each.way == OURS:  # a fault of ours is not to be passed over
                    raise
                each.skipped = f"PyTorch refuses: {(str(error).splitlines() or [type(error).__name__])[0]}"
            if context.device.type == "cuda":
                torch.cuda.empty_cache()  # a graph's memory is not reused by the next one

    def _time(self, timer: DeviceTimer, each: MeasuredWay, case: AttentionCase, right: Tensor) -> None:
        if each.way == OURS:
            is_plain = plain_attention.chosen(case.query, case.value) is plain_attention.attend
            each.code = "plain" if is_plain else "kernel"
        call = WAYS[each.way](case)
        if not each.note(largest_error(call(), right), "the first call"):
            return
        captured = timer.capture(call)
        repeats = timer.repeats(captured, call, self.seconds, self.replays)
        each.repeats = each.repeats or repeats
        times = timer.device_times(captured, call, each.repeats)
        if not each.note(largest_error(last_result(captured.outcome, captured.graph, call), right), "what was timed"):
            return
        host_calls = calls_by_host(times, self.seconds, self.host_calls)
        each.add(captured, times, timer.host_times(call, host_calls), case.floor_bytes)

    def _outcome(self, cases: list[list[MeasuredWay]], common: dict[str, Any], seed: int) -> Outcome:
        every = [each for ways in cases for each in ways]
        for reason in dict.fromkeys(each.skipped for each in every if each.skipped is not None):
            counts = Counter(each.way for each in every if each.skipped == reason)
            say(f"  left out: {', '.join(counts)}, in {max(counts.values())} of {len(cases)} cases: {reason}")
        if any(each.code == "plain" for each in every):
            say("  ours is the plain twin here: the kernel needs a GPU, and heads of at most 256 numbers")
        wrong = [each for each in every if each.wrong is not None]
        for each in wrong:
            say(f"  {each.way} is wrong in case {each.case}: {each.wrong}", style="red")
        timed = [each for each in every if each.timed]
        if not timed and not wrong:
            raise ConfigError("protocol.ways", self.ways, "nothing could be timed", f"The first: {every[0].skipped}")
        rows = []
        for ways in cases:
            ours = next((each for each in ways if each.way == OURS and each.timed), None)
            rows += [each.row(common, ours, seed) for each in ways]
        return Outcome(
            _headline(rows, len(timed), len(wrong)),
            tables={
                ATTENTION: Table(rows, ATTENTION_SCHEMA),
                ATTENTION_SAMPLES: Table([s for each in timed for s in each.samples()], ATTENTION_SAMPLES_SCHEMA),
            },
            failure=f"{len(wrong)} ways gave wrong results, and have no times" if wrong else None,
        )


def last_result(written: Tensor, graph: Any, call: Callable[[], Tensor]) -> Tensor:
    """What one more replay of the graph writes over NaN; without a graph, what one more call gives."""
    if graph is None:
        return call()
    written.fill_(math.nan)
    graph.replay()
    return written


def _checked_ways(ways: object) -> list[str]:
    """Raises ConfigError for anything but a list of different ways."""
    remedy = f"Use some of {', '.join(WAYS)}, in a list."
    if isinstance(ways, str) or not isinstance(ways, Sequence):
        raise ConfigError("protocol.ways", ways, "not a list", remedy)
    if unknown := [way for way in ways if way not in WAYS]:
        raise ConfigError("protocol.ways", list(ways), f"{unknown} are no ways", remedy)
    if not ways or len(set(ways)) < len(ways):
        raise ConfigError("protocol.ways", list(ways), "empty or repeated", remedy)
    return list(ways)


def _check_shape(shape: dict[str, Any], tokens: int, context: int) -> None:
    """Raises ConfigError for a shape that no case can have, or a case that has no room for its new tokens."""
    for name in ("heads", "key_heads", "head_size"):
        check_count(f"protocol.{name}", shape[name])
    heads, key_heads = shape["heads"], shape["key_heads"]
    if heads % key_heads:
        remedy = f"Use a multiple of protocol.key_heads={key_heads}."
        raise ConfigError("protocol.heads", heads, "heads cannot share the keys evenly", remedy)
    if not isinstance(shape["tree"], bool):
        raise ConfigError("protocol.tree", shape["tree"], "neither true nor false", "Use one of the two.")
    if shape["tree"] and tokens > plain_attention.MOST_NODES:
        most = plain_attention.MOST_NODES - 1
        raise ConfigError("protocol.gammas", tokens - 1, "too large for a tree", f"Use {most} or less.")
    least = tokens if shape["tree"] else 1  # ancestors might lie outside of a shorter window
    if shape["window"] is not None:
        check_count("protocol.window", shape["window"], least)
    softcap = shape["softcap"]
    if softcap is not None and (isinstance(softcap, bool) or not isinstance(softcap, int | float) or not softcap > 0):
        raise ConfigError("protocol.softcap", softcap, "no bound", "Use a number above 0, or null for none.")
    shortest = shape["shortest"]
    if isinstance(shortest, bool) or not isinstance(shortest, int | float) or not 0 < shortest <= 1:
        raise ConfigError("protocol.shortest", shortest, "not in (0, 1]", "Use the share of the longest, such as 0.5.")
    if math.ceil(shortest * context) < tokens:
        remedy = f"Use {math.ceil(tokens / shortest)} or more for gamma {tokens - 1} and protocol.shortest={shortest}."
        raise ConfigError("protocol.contexts", context, "the shortest request has no room for its new tokens", remedy)


def _headline(rows: list[dict[str, Any]], timed: int, wrong: int) -> str:
    text = f"{timed} of {len(rows)} ways timed and checked" + (f", {wrong} wrong" if wrong else "")
    shown = [row for row in rows if row["median_us"] is not None]
    if not shown:
        return text
    largest = max(shown, key=lambda row: (row["floor_bytes"], row["tokens"], row["way"] == OURS))
    text += f"; {largest['batch_size']} requests of {largest['tokens']} new tokens, context {largest['context']}"
    return f"{text}: {largest['way']} {largest['median_us']:.1f} us, {largest['ratio']:.2f} times the byte floor"
