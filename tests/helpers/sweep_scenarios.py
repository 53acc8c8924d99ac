"""What sweeps are put through, and what has to come of it: nothing is lost, and what is said is true.

    python -m tests.helpers.sweep_scenarios FOLDER NAME...      # leaves NAME.txt there: what was wrong, or nothing

One process imports everything and forks a child for each command line, since importing PyTorch costs seconds; a child
is killed, interrupted, or has its disk taken away like any other process.
"""

import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from specbench.metrics import results
from specbench.runs import execute, status
from specbench.runs.plan import read_plan
from specbench.runs.state import JobState, Status
from tests.helpers import launcher_scenarios, sweep_troubles
from tests.helpers.forked import Child, load_once, put_through, run
from tests.helpers.small_sweeps import ONE, SWEEP, TWO, numbers, sweeps


def states(sweep: Path) -> list[JobState]:
    return status.SweepStatus.of(sweep).states


def killed(folder: Path) -> None:
    """kill -9 in a job, and when rows are written; then to the end."""

    def wait(number: int) -> None:
        written = ("config.yaml", "results.parquet")[number]
        end = time.monotonic() + 60  # a sweep that never comes so far is killed too, and shows by its end
        while not any((sweep / "0" / written).exists() for sweep in sweeps(folder / "killed")):
            if time.monotonic() > end:
                break
            time.sleep(0.002)

    _killed(folder, TWO, 2, 2, lambda number, _: wait(number))


def killed_often(folder: Path) -> None:
    """At ten random moments."""
    moments = random.Random(3)
    _killed(folder, SWEEP, 4, 10, lambda _, seconds: time.sleep(moments.uniform(0.1, seconds * 0.6)))


def _killed(folder: Path, line: tuple[str, ...], jobs: int, kills: int, wait: Callable[[int, float], None]) -> None:
    """A sweep that is killed ends with the rows of an undisturbed one."""
    run(folder / "whole", *line).check(0)
    (undisturbed,) = sweeps(folder / "whole")
    seconds = (undisturbed / "results.parquet").stat().st_mtime - (undisturbed / "plan.json").stat().st_mtime
    ended = []
    for number in range(kills):
        again = ("resume=latest",) if sweeps(folder / "killed") else line
        child = Child(folder / "killed", *again)
        wait(number, seconds)
        os.kill(child.pid, signal.SIGKILL)
        ended.append(child.ended().status)
        if number % 3 == 0 and sweeps(folder / "killed"):
            report = run(folder / "killed", "report")
            report.check(report.status, f" of {jobs} jobs done")
    assert set(ended) <= {-9, 0}  # 0: it was done before its turn came
    assert ended.count(-9) >= kills / 2
    last = run(folder / "killed", *(("resume=latest",) if sweeps(folder / "killed") else line)).check(0)
    assert last.text.endswith(f"{jobs} of {jobs} jobs done.")
    (sweep,) = sweeps(folder / "killed")
    assert numbers(sweep) == numbers(undisturbed)
    assert len(results.read_results(sweep)) == jobs
    assert sum(state.attempt for state in states(sweep)) > jobs  # some jobs began more than once
    assert not list(sweep.rglob("*.tmp"))


def one_second(folder: Path) -> None:
    """Sweeps that start together have folders of their own."""
    children = [Child(folder, *ONE, f"seed={seed}") for seed in (1, 2)]
    for child in children:
        child.ended().check(0)
    assert sorted(results.read_results(sweep)["seed"].tolist() for sweep in sweeps(folder)) == [[1], [2]]


def shared(folder: Path) -> None:
    """Two processes that go on with one sweep share its jobs."""
    first = Child(folder, *TWO)
    while not sweeps(folder):
        time.sleep(0.02)
    os.kill(first.pid, signal.SIGKILL)
    assert first.ended().status == -9
    children = [Child(folder, "resume=latest") for _ in range(2)]
    for ended in [child.ended() for child in children]:
        ended.check(ended.status)
    sweep = sweeps(folder)[0]
    assert [state.status for state in states(sweep)] == [Status.DONE] * 2
    assert len(results.read_results(sweep)) == 2
    assert sum(state.attempt for state in states(sweep)) in (2, 3)  # 3 if the first was killed in a job


def widened(folder: Path) -> None:
    """More of the same: jobs that are done stay as they are."""
    (folder / "prompts.jsonl").write_text('{"prompt": "def f(x):"}\n')
    mine = (*ONE[:-2], "verifier=masked", "workload=file", "workload.path=prompts.jsonl")
    run(folder, *mine, "gamma=1,2").check(0)
    (sweep,) = sweeps(folder)
    before = (sweep / "0" / "results.parquet").stat().st_mtime_ns
    run(folder, "resume=latest", *mine, "gamma=0,2,1,3").check(0)
    planned = read_plan(sweep).jobs
    assert [job.label.rpartition(",")[2] for job in planned] == ["gamma=1", "gamma=2", "gamma=0", "gamma=3"]
    assert before == (sweep / "0" / "results.parquet").stat().st_mtime_ns
    run(folder, "resume=latest", "threads=1").check(0, "none of its jobs left to run")
    rows = results.read_results(sweep)
    assert rows["gamma"].tolist() == [1, 2, 0, 3]
    assert set(rows["workload"]) == {"file:prompts.jsonl"}


def interrupted(folder: Path) -> None:
    """SIGTERM while the second job runs, and SIGINT while a later one does, end in order; then on to the end."""
    line = (*SWEEP, "verifier=masked", "gamma=1,2,3")
    ends = (
        ("SIGTERM", 1, line, 143, "1 of 3 jobs done, 1 not started, 1 failed."),
        ("SIGINT", 2, ("resume=latest",), 130, "2 of 3 jobs done, 1 failed."),
    )
    for name, job, arguments, ended, sentence in ends:
        child = Child(folder, *arguments, before=_slow_second_job)
        while not any((sweep / str(job) / "slow").exists() for sweep in sweeps(folder)):
            time.sleep(0.02)
        os.kill(child.pid, getattr(signal, name))
        remedy = "To run what is missing: python -m specbench resume=outputs/smoke/"
        child.ended().check(ended, "Results: ", sentence, remedy)
        (sweep,) = sweeps(folder)
        assert states(sweep)[job].reason == f"interrupted ({name})"
    assert (sweep / "0" / "planned").read_text() == "3"  # before the first ended: a sweep killed early can be resumed
    run(folder, "resume=latest").check(0)


def _slow_second_job() -> None:
    """The second job that this process runs never gets its tables written; the first notes how many are planned."""
    write, count = execute.write_tables, iter(range(100))

    def slow(folder: Path, *rest: object) -> None:
        number = next(count)
        if number == 0:
            plan = read_plan(folder.parent)
            (folder / "planned").write_text(str(len(plan.jobs) if plan else 0))
        if number == 1:
            (folder / "slow").touch()
            time.sleep(60)
        write(folder, *rest)

    execute.write_tables = slow


SCENARIOS = {
    scenario.__name__: scenario
    for scenario in (
        *(killed, killed_often, one_second, shared, widened, interrupted),
        *(sweep_troubles.full_disk, sweep_troubles.read_only, sweep_troubles.moved, sweep_troubles.no_figures),
        *(sweep_troubles.no_tracking, sweep_troubles.killed_tracking, sweep_troubles.no_report),
        *(sweep_troubles.no_links, sweep_troubles.file_named_latest, sweep_troubles.exits),
        *(launcher_scenarios.joblib, launcher_scenarios.submitit_local, launcher_scenarios.ray),
        launcher_scenarios.lost,
    )
}


def _main(at: str, *names: str) -> None:
    load_once()
    execute.draw_figures = lambda *_: None  # a sixth of the time; the smoke sweep of tests/cli/test_smoke.py has them
    put_through(Path(at), *(SCENARIOS[name] for name in names))


if __name__ == "__main__":
    _main(*sys.argv[1:])
