"""What is said of other processes: from a made-up /proc/stat and made-up clocks."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from specbench.metrics import disturbance
from specbench.metrics.disturbance import Disturbance, DisturbanceWatch, busy_seconds, is_disturbed


@dataclass
class Machine:
    """Clocks, and a kernel that counts what two of its four cores do in hundredths of a second."""

    stat: Path
    clocks: dict[str, float] = field(
        default_factory=lambda: {"perf_counter": 50.0, "process_time": 7.0, "thread_time": 6.0}
    )
    busy: float = 1000.0
    counts: bool = True

    def __getattr__(self, name: str):
        return lambda: self.clocks[name]

    def passes(self, wall: float, process: float, others: float, thread: float | None = None) -> None:
        for name, seconds in (("perf_counter", wall), ("process_time", process), ("thread_time", thread or process)):
            self.clocks[name] += seconds
        self.busy += process + others
        self.write()

    def write(self) -> None:
        ticks = round(100 * self.busy * self.counts)
        # user nice system idle iowait irq softirq steal guest; steal is another virtual machine's
        cores = [f"{ticks - 30} 10 5 999999 888 5 5 5 77", "0 0 0 500 0 0 0 0 0", "900 900 900 1 1 900 900 900 900"]
        lines = ["cpu 1 2 3 4 5 6 7 8 9 10", *(f"cpu{i} {line}" for i, line in enumerate(cores)), "intr 5 6", "ctxt 9"]
        self.stat.write_text("\n".join(lines))


@pytest.fixture
def machine(tmp_path, monkeypatch) -> Machine:
    made = Machine(tmp_path / "stat")
    made.write()
    monkeypatch.setattr(disturbance, "STAT", made.stat)
    monkeypatch.setattr(disturbance, "time", made)
    monkeypatch.setattr(disturbance.os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    monkeypatch.setattr(disturbance.os, "sysconf", lambda _: 100)
    return made


@pytest.mark.parametrize(
    ("threads", "passed", "other_cores", "waited", "disturbed"),
    [
        (1, {"process": 8, "others": 9}, 0.9, 0.2, True),
        (1, {"process": 9.97, "others": 0.15, "thread": 9.95}, 0.015, 0.005, False),
        (2, {"process": 19, "others": 0.1, "thread": 9}, 0.01, None, False),
    ],
    ids=["busy", "quiet", "several threads do not tell how long one waited"],
)
def test_others_are_who_is_busy_and_not_this_process(machine, threads, passed, other_cores, waited, disturbed):
    assert busy_seconds({0, 1}) == pytest.approx(1000)
    watch = DisturbanceWatch(on_cpu=True, threads=threads)
    machine.passes(wall=10, **passed)
    seen = watch.ended()
    assert (seen.cores, seen.other_cores, seen.waited) == (2, pytest.approx(other_cores), pytest.approx(waited))
    assert is_disturbed(seen) == disturbed


@pytest.mark.parametrize(("on_cpu", "wall"), [(False, 10.0), (True, 0.3)], ids=["GPU", "too short"])
def test_what_cannot_be_known_is_not_said(machine, on_cpu, wall):
    watch = DisturbanceWatch(on_cpu, threads=1)
    machine.passes(wall, process=wall / 2, others=wall)
    assert watch.ended() == Disturbance()
    assert not is_disturbed(Disturbance())


@pytest.mark.parametrize("how", ["zeros", "gone", "other cores"])
def test_a_kernel_that_does_not_count(machine, how, monkeypatch):
    """A sandbox's zeros would mean an idle machine; the waiting time of a thread is measured all the same."""
    if how == "zeros":
        machine.counts = False
    elif how == "gone":
        monkeypatch.setattr(disturbance, "STAT", machine.stat.with_name("nothing"))
    else:
        monkeypatch.setattr(disturbance.os, "sched_getaffinity", lambda _: {0, 7})
    machine.write()
    watch = DisturbanceWatch(on_cpu=True, threads=1)
    machine.passes(wall=10, process=8, others=9)
    seen = watch.ended()
    assert (seen.cores, seen.other_cores, seen.waited) == (None, None, pytest.approx(0.2))


def test_this_machine_answers():
    """The real clocks and the real kernel, if it has one."""
    watch = DisturbanceWatch(on_cpu=True, threads=1)
    watch.started = disturbance._LoadReading(
        watch.started.wall - 10, *(vars(watch.started)[k] for k in ("process", "thread", "busy"))
    )
    seen = watch.ended()
    assert seen.waited is not None
    assert 0.9 <= seen.waited <= 1
    assert seen.other_cores is None or seen.other_cores >= 0
