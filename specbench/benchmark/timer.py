"""Timing calls that queue work on a device.

On a GPU a call is captured in a CUDA graph, as serving engines run a step, and the graph is replayed many times; events
around each replay give the device's own time. Before each replay, outside of the events, what the last one changed of
its input is restored, and the cache is flushed, since in a serving engine a forward pass lies between two
verifications. A call that waits for the host cannot be captured; it is timed call by call, and its row says so. On a
CPU the wall clock is read around each call.
"""

import statistics
import time
import timeit
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from specbench.core.errors import ConfigError

FLUSHES = ("write", "read")
_FLUSH_BYTES = {"cuda": 2**28, "cpu": 2**27}  # several times the cache of a GPU, or of a group of CPU cores
_WARMUP = 3
FEWEST = 3  # replays a round

Call = Callable[[], Any]  # gives the tensors that it wrote


def nothing() -> None:
    """Restores the input of a call that does not change it."""


@dataclass(frozen=True)
class Captured:
    """A call as a graph.

    Attributes:
        graph: None where the call could not be captured.
        outcome: what every replay writes anew; without a graph, what a call returned.
    """

    graph: Any
    outcome: Any
    why_not: str | None = None


class DeviceTimer:
    """Times on one device.

    Args:
        flush: "write" fills a buffer larger than the cache, which leaves the cache full of lines that the device still
            has to write back while the timed work runs; "read" reads it, which leaves clean lines.

    Raises:
        ConfigError: another ``flush``.
    """

    def __init__(self, device: torch.device, flush: str = "write"):
        if flush not in FLUSHES:
            raise ConfigError("protocol.flush", flush, "unknown", f"Use {' or '.join(FLUSHES)}.")
        self.device, self._flush = device, flush
        if device.type == "cuda" and device.index is not None:
            torch.cuda.set_device(device)  # events and graphs belong to the current device
        self._buffer = torch.zeros(_FLUSH_BYTES[device.type] // 4, dtype=torch.int32, device=device)
        self._cuda = device.type == "cuda"
        self._side = torch.cuda.Stream(device) if self._cuda else None

    def flush(self) -> None:
        """Drives everything else out of the cache."""
        if self._flush == "write":
            self._buffer.zero_()
        else:
            torch.max(self._buffer)

    def synchronize(self) -> None:
        if self._cuda:
            torch.cuda.synchronize(self.device)

    def capture(self, call: Call, capturable: bool = True) -> Captured:
        """The call as a graph, after a few calls that compile and allocate whatever it needs.

        Args:
            capturable: False where the call is declared not to be.
        """
        if not self._cuda:
            return Captured(None, call(), "no graphs on a CPU")
        if not capturable:
            return Captured(None, call(), "declared not to be capturable")
        if problem := self._waits_for_the_host(call):
            return Captured(None, call(), problem)
        assert self._side is not None
        self._side.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._side):
            for _ in range(_WARMUP):
                outcome = call()
        torch.cuda.current_stream(self.device).wait_stream(self._side)
        self.synchronize()
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, stream=self._side):  # kernels keep scratch memory for each stream
                outcome = call()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            self.synchronize()
            return Captured(None, call(), f"capture failed: {_first_line(error)}")
        return Captured(graph, outcome)

    def _waits_for_the_host(self, call: Call) -> str | None:
        """Why the call cannot be captured, found without a capture: a failed one can leave the allocator unusable."""
        call()  # compiles what it needs, which may wait
        self.synchronize()
        before = torch.cuda.get_sync_debug_mode()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that this mode is a prototype
            torch.cuda.set_sync_debug_mode("error")
        try:
            call()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            return f"waits for the host: {_first_line(error)}"
        finally:
            torch.cuda.set_sync_debug_mode(before)
        return None

    def device_times(
        self, captured: Captured, call: Call, repeats: int, restore: Callable[[], None] = nothing
    ) -> list[float]:
        """Microseconds of each replay of the graph, or of each call where there is none.

        Args:
            restore: makes the input what it was before the call changed it; called before each, untimed.
        """
        if not self._cuda:
            return self.host_times(call, repeats, restore)
        run = call if captured.graph is None else captured.graph.replay
        events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(repeats)]
        for before, after in events:
            restore()
            self.flush()
            before.record()
            run()
            after.record()
            if captured.graph is None:
                self.synchronize()
        self.synchronize()
        return [1000 * before.elapsed_time(after) for before, after in events]

    def repeats(
        self, captured: Captured, call: Call, seconds: float, most: int, restore: Callable[[], None] = nothing
    ) -> int:
        """How many replays take about ``seconds``, at least FEWEST and at most ``most``.

        Also a warm-up: a graph's first replays are slower.
        """
        (pilot,) = self.device_times(captured, call, 1, restore)
        if _is_quick(pilot, seconds):
            pilot = statistics.median(self.device_times(captured, call, FEWEST, restore))
        return int(min(max(seconds * 1e6 / pilot, FEWEST), most))

    def host_times(self, call: Callable[[], Any], repeats: int, restore: Callable[[], None] = nothing) -> list[float]:
        """Microseconds by the wall clock from making a call to the end of its work, the host's part included."""
        times = []
        for _ in range(repeats):
            restore()
            self.flush()
            self.synchronize()
            started = time.perf_counter()
            call()
            self.synchronize()
            times.append(1e6 * (time.perf_counter() - started))
        return times

    def empty_graph_us(self, repeats: int = 100) -> float | None:
        """The median time of replaying a graph without work in it, in microseconds: what no verifier can be below."""
        if not self._cuda:
            return None
        graph = torch.cuda.CUDAGraph()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the graph is empty
            with torch.cuda.graph(graph):
                pass
        return statistics.median(self.device_times(Captured(graph, None), nothing, repeats))

    def copy_bandwidth(self, repeats: int = 20) -> float:
        """Bytes a second of the device's own large copy, bytes read and bytes written both counted; the median."""
        size = 2**30 if self._cuda else 2**28
        source = torch.full((size,), 1, dtype=torch.uint8, device=self.device)
        sink = torch.empty_like(source)
        sink.copy_(source)  # touches every page
        if self._cuda:
            events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(repeats)]
            for before, after in events:
                before.record()
                sink.copy_(source)
                after.record()
            self.synchronize()
            seconds = statistics.median(before.elapsed_time(after) / 1000 for before, after in events)
        else:
            seconds = statistics.median(timeit.repeat(lambda: sink.copy_(source), number=1, repeat=repeats // 2))
        return 2 * size / seconds


def kernels_run(device: torch.device, work: Callable[[], object]) -> int | None:
    """Runs work and returns the number of its kernels, copies and fillings, those inside a CUDA graph one by one.

    NVIDIA's own profiling interface counts them, which takes seconds and slows the work. On a CPU nothing runs: None.
    """
    if device.type != "cuda":
        return None
    torch.cuda.synchronize(device)
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as seen:
        work()
        torch.cuda.synchronize(device)
    return sum(event.device_type == DeviceType.CUDA for event in seen.events())


def calls_by_host(microseconds: Sequence[float], seconds: float, most: int) -> int:
    """How many calls are timed with the host's part: ``most`` if these times are short beside ``seconds``, else one."""
    return most if _is_quick(statistics.median(microseconds), seconds) else 1


def _is_quick(microseconds: float, seconds: float) -> bool:
    """Whether ten calls are done within ``seconds``, so that a few more do not matter."""
    return microseconds < 1e5 * seconds


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
