"""How W&B's runs end: of jobs that failed or were killed, and of their sweep. Read back from W&B's own files."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from specbench.metrics import results
from specbench.runs.state import JobState, Status
from specbench.runs.status import SweepStatus
from specbench.runs.tracking import sweeps
from specbench.runs.tracking.run import TrackedRun
from tests.helpers.made_up_rows import make_row
from tests.helpers.small_sweeps import planned_sweep
from tests.helpers.wandb_runs import Tracked, read_run

CONFIG = """
gamma: 3
tracking: {mode: offline, project: p, entity: null, texts: 8, live: null}
"""
CHOICES = {"protocol": "decode", "verifier": "masked", "drafter": "model", "pair": "embedded"}


def sweep_of(folder: Path, *states: JobState) -> Path:
    """A sweep's folder, whose jobs began and came to what is said."""
    choices = [{**CHOICES, "verifier": verifier} for verifier in ("masked", "naive", "block")]
    sweep = planned_sweep(folder / "outputs/mine/2026-01-01", *states, exp="mine", choices=choices)
    for number in range(len(states)):
        (sweep / str(number) / "config.yaml").write_text(CONFIG)
    return sweep


def track(sweep: Path, ended: bool = True) -> list[str]:
    status = SweepStatus.of(sweep)
    assert status is not None
    return list(sweeps.track_sweep(status, ended=ended, online=True))


def only(folder: Path) -> Tracked:
    (path,) = folder.glob("wandb/offline-run-*/*.wandb")
    return read_run(path)


@pytest.fixture(scope="module")
def tracked_sweep(tmp_path_factory) -> Path:
    """A sweep of which one job is done and tracked, one was killed, and one has failed before it could be tracked."""
    begun = JobState("x").begun()
    done = begun.ending(Status.DONE)
    failed = begun.ending(Status.FAILED, "the model has <NaN> logits")
    sweep = sweep_of(tmp_path_factory.mktemp("endings"), done, dataclasses.replace(begun, pid=4242), failed)
    results.write_rows(sweep / "0" / results.RESULTS, [make_row()], results.RESULT_SCHEMA)
    (sweep / "0/wandb/offline-run-1-a").mkdir(parents=True)
    (sweep / "0/wandb/offline-run-1-a/run-a.wandb").touch()
    (sweep / "1/progress.jsonl").write_text('{"seconds": 0.0, "tokens": 8}\n{"seconds": 2.5, "tokens": 16}\n{"sec')
    (sweep / "2/error.txt").write_text("Traceback:\n  <b>ValueError</b>")
    (sweep / "report").mkdir()
    assert track(sweep) == []
    return sweep


@pytest.mark.thorough
def test_a_job_that_was_killed_is_marked_with_what_it_left(tracked_sweep):
    run = only(tracked_sweep / "1")
    assert (run.exit_code, run.summary["status"]) == (1, "died")
    assert run.summary["reason"].startswith("process 4242 on ")
    assert {"died", "verifier:naive", "protocol:decode"} <= set(run.run.tags)
    assert (run.run.run_group, run.run.display_name, run.run.job_type) == ("mine/2026-01-01", "gamma=1", "naive")
    assert run.config["gamma"] == 3
    assert [line["live/tokens"] for line in run.lines if "live/tokens" in line] == [8, 16]


def test_a_job_that_failed_says_why(tracked_sweep):
    """The reason in its summary, the error as text in which nothing is HTML."""
    run = only(tracked_sweep / "2")
    assert (run.exit_code, run.summary["status"]) == (1, "failed")
    assert run.summary["reason"] == "the model has <NaN> logits"
    shown = (run.files / run.history["error"]["path"]).read_text()
    assert "Traceback:\n  &lt;b&gt;ValueError&lt;/b&gt;" in shown


def test_the_sweep_says_that_jobs_failed(tracked_sweep):
    run = only(tracked_sweep)
    assert run.exit_code == 1
    assert {key: value for key, value in run.summary.items() if key.startswith("jobs")} == {
        "jobs": 3, "jobs_done": 1, "jobs_died": 1, "jobs_failed": 1,
    }  # fmt: skip
    assert set(run.run.tags) == {"sweep", "protocol:decode", "drafter:model", "pair:embedded"}
    jobs = run.table("tables/jobs")
    reasons = [dict(zip(jobs["columns"], row, strict=True))["reason"] for row in jobs["data"]]
    assert reasons == [None, None, "the model has <NaN> logits"]


def test_nothing_is_told_twice(tracked_sweep, monkeypatch):
    """Neither of jobs that have a run, nor of the sweep by who only looks at it."""
    calls = []
    monkeypatch.setattr(TrackedRun, "end", lambda self: calls.append(self.name))
    assert track(tracked_sweep, ended=False) == []
    assert calls == []
    assert track(tracked_sweep) == []
    assert calls == ["sweep 2026-01-01"]


@pytest.mark.parametrize(
    ("states", "disabled", "expected"),
    [
        ([Status.DONE], "", []),  # one job has all that its sweep would say
        ([Status.DONE, Status.PLANNED], "", ["sweep 2026-01-01"]),
        ([Status.FAILED, Status.SKIPPED], "", ["gamma=0", "gamma=1", "sweep 2026-01-01"]),
        ([Status.FAILED, Status.DONE], "01", []),
        ([Status.DONE, Status.FAILED, Status.FAILED], "1", ["gamma=2", "sweep 2026-01-01"]),
    ],
)
def test_who_is_told_of(tmp_path, monkeypatch, states, disabled, expected):
    calls = []
    monkeypatch.setattr(TrackedRun, "end", lambda self: calls.append(self.name))
    sweep = sweep_of(tmp_path, *(JobState("x", status) for status in states))
    for number in disabled:
        (sweep / number / "config.yaml").write_text(CONFIG.replace("offline", "disabled"))
    track(sweep)
    assert calls == expected


def test_who_only_looks_sends_nothing(tmp_path, monkeypatch):
    """A folder of someone else's may say online."""
    modes = []
    monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
    monkeypatch.setattr(TrackedRun, "end", lambda self: modes.append(self.settings.mode))
    sweep = sweep_of(tmp_path, JobState("x", Status.FAILED))
    (sweep / "0/config.yaml").write_text(CONFIG.replace("offline", "online"))
    status = SweepStatus.of(sweep)
    assert status is not None
    for online in (False, True):
        assert list(sweeps.track_sweep(status, ended=False, online=online)) == []
    assert modes == ["offline", "online"]
