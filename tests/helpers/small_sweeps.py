"""Small sweeps of the embedded pair, what is compared of two of them, and folders as sweeps leave them."""

import json
from collections.abc import Sequence
from itertools import repeat
from pathlib import Path

from specbench.metrics import results
from specbench.runs.plan import Plan, PlannedJob, write_plan
from specbench.runs.state import JobState, write_state

SWEEP = (
    *("+exp=smoke", "max_new_tokens=4", "workload.limit=2", "protocol.warmup=0", "tracking.mode=disabled"),
    *("protocol.check.prefixes=1", "protocol.check.draws=4", "protocol.rounds=1", "protocol.max_rounds=1"),
    "sampler.truncate_prompt_tokens=8",  # most of the time would go to reading the prompts
)  # four jobs: gamma=1,3 verifier=naive,masked
TWO = (*SWEEP, "gamma=1")
ONE = (*TWO, "verifier=masked")


def planned_sweep(folder: Path, *states: JobState, exp: str = "smoke", choices: Sequence[dict[str, str]] = ()) -> Path:
    """A sweep's folder whose jobs, gamma=0, gamma=1 and so on, have come to these states.

    Args:
        choices: of conf, of each job; none of them chooses anything if empty.
    """
    folder.mkdir(parents=True, exist_ok=True)
    jobs = []
    for number, (state, chosen) in enumerate(zip(states, choices or repeat({}), strict=False)):
        overrides = [f"gamma={number}", *(f"{group}={choice}" for group, choice in chosen.items())]
        jobs.append(PlannedJob(number, state.id, f"gamma={number}", overrides, choices=chosen))
    write_plan(folder, Plan(exp, "2026-01-01", str(folder), None, jobs))
    for number, state in enumerate(states):
        write_state(folder / str(number), state)
    return folder


def sweeps(folder: Path) -> list[Path]:
    return sorted(path.parent for path in folder.glob("outputs/*/*/plan.json") if not path.parent.is_symlink())


def numbers(sweep: Path) -> list[list[object]]:
    """What the rows of a sweep say, times aside; and the log of its steps."""
    rows = results.read_results(sweep)
    kept = ["job", "verifier", "gamma", "tokens", "accepted", "overlap", "check_tv", "acceptance_histogram"]
    steps = results.read_jobs(sweep, results.STEPS)
    steps = steps.astype({"num_accepted": int}).groupby("job")["num_accepted"].apply(list)
    return [*json.loads(rows[kept].to_json(orient="values")), *([*entry] for entry in steps.items())]
