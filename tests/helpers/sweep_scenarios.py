"""What sweeps are put through, and what was found.

    python -m tests.helpers.sweep_scenarios FOLDER NAME...      # leaves NAME.json there

One process imports everything and forks a child for each command line, since importing PyTorch costs seconds; a child
is killed, interrupted, or has its disk taken away like any other process.
"""

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from specbench.metrics import results
from specbench.runs import execute, status
from specbench.runs.plan import read_plan
from specbench.runs.state import Status
from tests.helpers import launcher_scenarios, sweep_troubles
from tests.helpers.forked import Child, load_once, run
from tests.helpers.small_sweeps import ONE, SWEEP, TWO, numbers, sweeps

MOMENTS = (
    lambda sweep: (sweep / "0" / "config.yaml").exists(),
    lambda sweep: (sweep / "0" / "results.parquet").exists(),
    lambda sweep: (sweep / "plan.json").exists(),
    lambda sweep: (sweep / "2" / "config.yaml").exists(),
)


def killed(folder: Path) -> dict[str, object]:
    """kill -9 in a job, and when rows are written; then to the end."""
    return _killed_at(folder, MOMENTS[:2], TWO)


def killed_at_each(folder: Path) -> dict[str, object]:
    """kill -9 when a sweep is planned, in a job, when rows are written, and in a job that goes on; then to the end."""
    plan, later = MOMENTS[2:]
    return _killed_at(folder, (plan, *MOMENTS[:2], later), SWEEP)


def _killed_at(folder: Path, moments: Sequence[Callable[[Path], bool]], line: tuple[str, ...]) -> dict[str, object]:
    def wait(number: int) -> None:
        end = time.monotonic() + 60  # a sweep that never comes so far is killed too, and shows by its end
        while not any(map(moments[number], sweeps(folder / "killed"))) and time.monotonic() < end:
            time.sleep(0.002)

    return _killed(folder, line, len(moments), lambda number, _: wait(number))


def killed_often(folder: Path) -> dict[str, object]:
    """At ten random moments."""
    moments = random.Random(3)
    return _killed(folder, SWEEP, 10, lambda _, seconds: time.sleep(moments.uniform(0.1, seconds * 0.6)))


def _killed(folder: Path, line: tuple[str, ...], kills: int, wait: Callable[[int, float], None]) -> dict[str, object]:
    assert run(folder / "whole", *line).status == 0
    (undisturbed,) = sweeps(folder / "whole")
    seconds = (undisturbed / "results.parquet").stat().st_mtime - (undisturbed / "plan.json").stat().st_mtime
    ended, reports = [], []
    for number in range(kills):
        again = ("resume=latest",) if sweeps(folder / "killed") else line
        child = Child(folder / "killed", *again)
        wait(number, seconds)
        os.kill(child.pid, signal.SIGKILL)
        ended.append(child.ended().status)
        if number % 3 == 0 and sweeps(folder / "killed"):
            reports.append(asdict(run(folder / "killed", "report")))
    last = run(folder / "killed", *(("resume=latest",) if sweeps(folder / "killed") else line))
    (sweep,) = sweeps(folder / "killed")
    states = status.SweepStatus.of(sweep).states
    return {
        "ended": ended,
        "said": reports,
        "last": asdict(last),
        "attempts": sum(state.attempt for state in states),
        "same": numbers(sweep) == numbers(undisturbed),
        "rows": len(results.read_results(sweep)),
        "left": sorted(path.name for path in sweep.rglob("*.tmp")),
    }


def one_second(folder: Path) -> dict[str, object]:
    """Two sweeps that start together, and two processes that go on with one sweep together."""
    children = [Child(folder / "two", *ONE, f"seed={seed}") for seed in (1, 2)]
    ended = [child.ended().status for child in children]
    seeds = [results.read_results(sweep)["seed"].tolist() for sweep in sweeps(folder / "two")]
    first = Child(folder / "both", *TWO)
    while not sweeps(folder / "both"):
        time.sleep(0.02)
    os.kill(first.pid, signal.SIGKILL)
    killed_first = first.ended().status
    children = [Child(folder / "both", "resume=latest") for _ in range(2)]
    both = [asdict(child.ended()) for child in children]
    sweep = sweeps(folder / "both")[0]
    states = status.SweepStatus.of(sweep).states
    return {
        "ended": ended,
        "seeds": sorted(seeds),
        "first": killed_first,
        "both": both,
        "done": sum(state.status is Status.DONE for state in states),
        "attempts": [state.attempt for state in states],
        "rows": len(results.read_results(sweep)),
    }


def widened(folder: Path) -> dict[str, object]:
    """More of the same: jobs that are done stay as they are. Then a file that was read has changed."""
    (folder / "w").mkdir()
    prompts = folder / "w" / "prompts.jsonl"
    prompts.write_text('{"prompt": "def f(x):"}\n')
    mine = (*ONE[:-2], "verifier=masked", "workload=file", "workload.path=prompts.jsonl")
    first = run(folder / "w", *mine, "gamma=1,2")
    (sweep,) = sweeps(folder / "w")
    before = (sweep / "0" / "results.parquet").stat().st_mtime_ns
    wider = run(folder / "w", "resume=latest", *mine, "gamma=0,2,1,3")
    plan = [job.label.rpartition(",")[2] for job in read_plan(sweep).jobs]
    nothing = run(folder / "w", "resume=latest", "threads=1")
    prompts.write_text('{"prompt": "def g(x):"}\n')
    more = run(folder / "w", "resume=latest", *mine, "gamma=5")
    other = run(folder / "w", f"resume={sweep.relative_to(folder / 'w')}", *mine[:-2], "workload.limit=1", "gamma=1")
    return {
        "statuses": [first.status, wider.status, nothing.status],
        "plan": plan,
        "kept": before == (sweep / "0" / "results.parquet").stat().st_mtime_ns,
        "nothing": nothing.text,
        "workloads": sorted(set(results.read_results(sweep)["workload"])),
        "changed": asdict(more),
        "other": asdict(other),
        "gammas": results.read_results(sweep)["gamma"].tolist(),
    }


def interrupted(folder: Path) -> dict[str, object]:
    """SIGTERM while the second job runs, and SIGINT while a later one does; then on to the end."""
    outcome: dict[str, object] = {}
    line = (*SWEEP, "verifier=masked", "gamma=1,2,3")
    for name, job, arguments in (("SIGTERM", 1, line), ("SIGINT", 2, ("resume=latest",))):
        child = Child(folder / "s", *arguments, before=_slow_second_job)
        while not any((sweep / str(job) / "slow").exists() for sweep in sweeps(folder / "s")):
            time.sleep(0.02)
        os.kill(child.pid, getattr(signal, name))
        ended = asdict(child.ended())
        (sweep,) = sweeps(folder / "s")
        outcome[name] = ended | {"reason": status.SweepStatus.of(sweep).states[job].reason}
    (sweep,) = sweeps(folder / "s")
    outcome["planned"] = (sweep / "0" / "planned").read_text()
    return outcome | {"again": run(folder / "s", "resume=latest").status}


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
        *(killed, killed_at_each, killed_often, one_second, widened, interrupted),
        *(sweep_troubles.no_room, sweep_troubles.beside_numbers),
        *(launcher_scenarios.joblib, launcher_scenarios.submitit_local, launcher_scenarios.ray),
        launcher_scenarios.lost,
    )
}


def _main(at: str, *names: str) -> None:
    folder = Path(at)
    load_once()
    execute.draw_figures = lambda *_: None  # a sixth of the time; the smoke sweep of tests/cli/test_smoke.py has them
    for name in names:
        (folder / name).mkdir()
        outcome = SCENARIOS[name](folder / name)
        (folder / f"{name}.json").write_text(json.dumps(outcome, indent=1))


if __name__ == "__main__":
    _main(*sys.argv[1:])
