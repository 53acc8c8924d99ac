"""Whether other processes disturbed what was timed: the CPU time that they took, and how long this one waited.

Linux counts the busy time of every core (proc_stat(5)) and a process its own; the difference is everyone else's, other
virtual machines on the same host included where the kernel is told of them (steal). With one thread of computation,
wall-clock time during which the thread did not run is time that it waited for a core. Where neither can be known (on a
GPU, whose other users do not show there; on other systems; in a sandbox that counts nothing; in too short a time)
nothing is said.
"""

import os
import time
from dataclasses import dataclass
from pathlib import Path

STAT = Path("/proc/stat")
SHORTEST = 0.5  # seconds: the kernel counts in hundredths of a second a core
# A machine at rest takes 1 or 2% for its own housekeeping.
OTHERS = 0.1  # of the cores, above which other processes disturb
WAITED = 0.05  # of the time


@dataclass(frozen=True)
class Disturbance:
    """What other processes took while something was timed; None where it cannot be known.

    Attributes:
        cores: that this process may use.
        other_cores: how many of them others kept busy, on average.
        waited: the share of the time that the one computing thread waited.
    """

    cores: int | None = None
    other_cores: float | None = None
    waited: float | None = None


@dataclass(frozen=True)
class _LoadReading:
    wall: float
    process: float
    thread: float
    busy: float | None


class DisturbanceWatch:
    """Watches from its making until :meth:`ended`; ``on_cpu`` says whether the timed work runs on the CPU."""

    def __init__(self, on_cpu: bool, threads: int):
        self.on_cpu, self.threads = on_cpu, threads
        self.usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
        self.started = self._read()

    def _read(self) -> _LoadReading:
        return _LoadReading(time.perf_counter(), time.process_time(), time.thread_time(), busy_seconds(self.usable))

    def ended(self) -> Disturbance:
        """What was seen so far."""
        now, before = self._read(), self.started
        wall, own = now.wall - before.wall, now.process - before.process
        if not self.on_cpu or wall < SHORTEST:
            return Disturbance()
        waited = max(0.0, 1 - (now.thread - before.thread) / wall) if self.threads == 1 else None
        if now.busy is None or before.busy is None or now.busy - before.busy < 0.5 * own:  # it counts something else
            return Disturbance(waited=waited)
        return Disturbance(len(self.usable), max(0.0, now.busy - before.busy - own) / wall, waited)


def busy_seconds(usable: set[int]) -> float | None:
    """Seconds that the given cores were busy since the machine started; None where the kernel does not say."""
    try:
        lines = [line.split() for line in STAT.read_text().splitlines()]
        counts = {name: [int(n) for n in numbers[:8]] for name, *numbers in lines if name.startswith("cpu")}
        # user, nice, system, idle, iowait, irq, softirq, steal
        ticks = sum(sum(counts[f"cpu{core}"]) - sum(counts[f"cpu{core}"][3:5]) for core in usable)
        return ticks / os.sysconf("SC_CLK_TCK") if usable else None
    except (OSError, KeyError, ValueError):
        return None


def is_disturbed(seen: Disturbance) -> bool:
    """Whether times taken meanwhile are not to be trusted with small differences."""
    others = 0.0 if seen.cores is None or seen.other_cores is None else seen.other_cores / seen.cores
    return others > OTHERS or (seen.waited or 0.0) > WAITED
