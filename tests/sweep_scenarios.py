"""What sweeps are put through: python -m tests.sweep_scenarios FOLDER. Each scenario leaves its findings as JSON there.

One process imports everything and forks a child for each command line, since importing PyTorch costs seconds; a child
is killed, interrupted, or has its disk taken away like any other process.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import torch

from specbench import results
from specbench.errors import TrackingError
from specbench.runs import execute, status
from specbench.runs.plan import read_plan
from specbench.runs.state import Status
from tests.forked import Child, Ended, run

SWEEP = (
    *("+exp=smoke", "max_new_tokens=4", "workload.limit=2", "protocol.warmup=0", "tracking.mode=disabled"),
    *("protocol.check.prefixes=1", "protocol.check.draws=4"),
)
ONE = (*SWEEP, "gamma=1", "verifier=masked")
KILLS = 10


def sweeps(folder: Path) -> list[Path]:
    return sorted(path.parent for path in folder.glob("outputs/*/*/plan.json") if path.parent.name != "latest")


def numbers(sweep: Path) -> list[list[object]]:
    """What the rows of a sweep say, times aside; and the log of its steps."""
    rows = results.read_results(sweep)
    kept = ["job", "verifier", "gamma", "tokens", "accepted", "overlap", "check_tv", "acceptance_histogram"]
    steps = results.read_jobs(sweep, results.STEPS)
    steps = steps.astype({"num_accepted": int}).groupby("job")["num_accepted"].apply(list)
    return [*json.loads(rows[kept].to_json(orient="values")), *([*each] for each in steps.items())]


def killed(folder: Path) -> dict[str, object]:
    """kill -9 at random moments, then on with resume=latest, ten times; then undisturbed."""
    assert run(folder / "whole", *SWEEP).status == 0
    moments = random.Random(3)
    (undisturbed,) = sweeps(folder / "whole")
    seconds = (undisturbed / "results.parquet").stat().st_mtime - (undisturbed / "plan.json").stat().st_mtime
    ended, said = [], []
    for number in range(KILLS):
        again = ("resume=latest",) if sweeps(folder / "killed") else SWEEP
        child = Child(folder / "killed", *again)
        time.sleep(moments.uniform(0.1, seconds * 0.6))
        os.kill(child.pid, signal.SIGKILL)
        ended.append(child.ended().status)
        if number % 3 == 0 and sweeps(folder / "killed"):
            said.append(asdict(run(folder / "killed", "report")))
    last = run(folder / "killed", *(("resume=latest",) if sweeps(folder / "killed") else SWEEP))
    (sweep,) = sweeps(folder / "killed")
    states = status.SweepStatus.of(sweep).states
    return {
        "ended": ended,
        "said": said,
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
    first = Child(folder / "both", *SWEEP)
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
        "changed": asdict(more),
        "other": asdict(other),
        "gammas": results.read_results(sweep)["gamma"].tolist(),
    }


def interrupted(folder: Path) -> dict[str, object]:
    """SIGTERM and SIGINT while the second job runs."""
    found = {}
    for name in ("SIGTERM", "SIGINT"):
        child = Child(folder / name, *SWEEP, before=_slow_second_job)
        while not list(sweeps(folder / name)) or not (sweeps(folder / name)[0] / "1" / "slow").exists():
            time.sleep(0.02)
        os.kill(child.pid, getattr(signal, name))
        found[name] = asdict(child.ended())
        state = status.SweepStatus.of(sweeps(folder / name)[0]).states[1]
        found[name] |= {"reason": state.reason, "again": run(folder / name, "resume=latest").status}
    return found


def _slow_second_job() -> None:
    write, count = execute.write_tables, iter(range(100))

    def slow(folder: Path, *rest: object) -> None:
        if next(count) == 1:
            (folder / "slow").touch()
            time.sleep(60)
        write(folder, *rest)

    execute.write_tables = slow


def no_room(folder: Path) -> dict[str, object]:
    """Files that cannot grow beyond 2 KiB, as on a full disk; a folder that turns read-only; one that goes away."""

    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2048, 2048))

    found: dict[str, object] = {"full": asdict(run(folder / "full", *SWEEP, before=small_files))}
    found["full again"] = run(folder / "full", "resume=latest").status

    def read_only() -> None:
        _obey_permissions()
        _after_first_row(lambda sweep: [each.chmod(0o555) for each in (sweep, *sweep.iterdir()) if each.is_dir()])

    found["read-only"] = asdict(run(folder / "ro", *SWEEP, before=read_only))
    found["gone"] = asdict(run(folder / "gone", *SWEEP, before=lambda: _after_first_row(_remove)))
    return found


def _obey_permissions() -> None:
    """Takes from root what lets it write anywhere (CAP_DAC_OVERRIDE); others have not got it."""
    if os.getuid() != 0:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header, sets = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    assert libc.capget(header, sets) == 0
    sets[0] &= ~0b110
    assert libc.capset(header, sets) == 0


def _after_first_row(action: Callable[[Path], object]) -> None:
    write, count = execute.write_tables, iter(range(100))

    def written(folder: Path, *rest: object) -> None:
        write(folder, *rest)
        if next(count) == 0:
            execute.write_state(folder, execute.JobState("first", Status.DONE))
            action(folder.parent)

    execute.write_tables = written


def _remove(sweep: Path) -> None:
    sweep.rename(sweep.with_name("moved"))


def beside_numbers(folder: Path) -> dict[str, object]:
    """What goes wrong beside the numbers costs nothing of them: figures, tracking, reports, links."""

    def broken_figures() -> None:
        execute.draw_figures = _raise

    def broken_tracking() -> None:
        execute.tracking.log_run = _raise_tracking_error

    def killed_tracking() -> None:
        execute.tracking.log_run = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)

    def broken_report() -> None:
        from specbench.runs import ending

        ending.build_report = _raise

    def no_links() -> None:
        Path.symlink_to = _raise_os_error  # ty: ignore

    (folder / "file" / "outputs" / "smoke").mkdir(parents=True)
    (folder / "file" / "outputs" / "smoke" / "latest").write_text("mine")
    return {
        "figures": asdict(run(folder / "figures", *ONE, before=broken_figures)),
        "tracking": asdict(run(folder / "tracking", *ONE, before=broken_tracking)),
        "killed tracking": run(folder / "untracked", *ONE, before=killed_tracking).status,
        "untracked": asdict(run(folder / "untracked", "report")),
        "report": asdict(run(folder / "report", *ONE, before=broken_report)),
        "links": asdict(run(folder / "links", *ONE, before=no_links)),
        "links report": asdict(run(folder / "links", "report")),
        "a file named latest": asdict(run(folder / "file", *ONE)),
        "its content": (folder / "file" / "outputs" / "smoke" / "latest").read_text(),
        "exits": asdict(run(folder / "exits", *ONE, before=_exiting)),
        "latest of a failure": (folder / "exits" / "outputs" / "smoke" / "latest").exists(),
    }


def _raise(*_: object, **__: object) -> None:
    raise RuntimeError("broken on purpose")


def _raise_tracking_error(*_: object, **__: object) -> None:
    raise TrackingError("broken on purpose")


def _raise_os_error(*_: object, **__: object) -> None:
    raise OSError(1, "Operation not permitted")


def _exiting() -> None:
    execute.choose_device = lambda _: sys.exit(0)


def launchers(folder: Path) -> dict[str, object]:
    """The same sweep by each launcher; one of its jobs fails, and one takes its process with it."""
    found = {}
    many = (*SWEEP, "share_machine=true", "gamma=1,3", "verifier=masked")
    for name, settings in (
        ("basic", ()),
        ("joblib", ("hydra.launcher.n_jobs=2",)),
        ("submitit_local", ()),
        ("ray", ("hydra.launcher.workers=2",)),
    ):
        place = folder / name
        place.mkdir()
        done = _process(place, *many, f"hydra/launcher={name}", *settings)
        (sweep,) = sweeps(place)
        found[name] = {
            "ended": asdict(done),
            "numbers": numbers(sweep),
            "latest": (place / "outputs" / "smoke" / "latest" / "report" / "report.md").exists(),
            "home": sorted(path.name for path in place.iterdir()),
        }
    place = folder / "lost"
    place.mkdir()
    (place / "mine.py").write_text(DEADLY)
    bad = ("verifier._target_=specbench.verifiers.naive.NaiveVerifier,mine.Deadly", "gamma=1,99")
    done = _process(
        place, *SWEEP, "share_machine=true", *bad, "hydra/launcher=ray", "hydra.launcher.workers=2", "verifier=naive"
    )
    found["lost"] = asdict(done)
    found["refused"] = asdict(_process(place, *SWEEP, "hydra/launcher=joblib"))
    return found


DEADLY = """\
import os

class Deadly:
    rule, lossless = "token", True

    def verify(self, draft, target, streams):
        os._exit(9)
"""


def _process(folder: Path, *arguments: str) -> Ended:
    """A process without anything imported: launchers start their own from it."""
    environment = {**os.environ, "HOME": str(folder)}
    done = subprocess.run(
        [sys.executable, "-m", "specbench", *arguments],
        cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    return Ended(done.returncode, done.stdout + done.stderr)


SCENARIOS = (killed, one_second, widened, interrupted, no_room, beside_numbers, launchers)


def _main(folder: Path, names: list[str]) -> None:
    torch.set_num_threads(1)
    for scenario in SCENARIOS:
        if not names or scenario.__name__ in names:
            (folder / scenario.__name__).mkdir()
            found = scenario(folder / scenario.__name__)
            (folder / f"{scenario.__name__}.json").write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    _main(Path(sys.argv[1]), sys.argv[2:])
