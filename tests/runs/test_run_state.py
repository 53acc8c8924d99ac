"""What a sweep's folder says of its jobs."""

import dataclasses
import errno
import json
import os
import shlex
import signal
import subprocess
import sys
import textwrap
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from specbench.analysis.folder import read_rows
from specbench.analysis.page import page
from specbench.core.errors import ConfigError, SpecbenchError
from specbench.core.machine.disk import WriteError, beside, clear_temporaries, write_json, writing
from specbench.metrics.results import RESULT_SCHEMA, RESULTS, write_rows
from specbench.reports import markdown
from specbench.runs import plan as plans
from specbench.runs import state as of_jobs
from specbench.runs.building import _tokens
from specbench.runs.config import Config
from specbench.runs.ending import _collect
from specbench.runs.overrides import labels_of, typed
from specbench.runs.plan import (
    Plan,
    PlannedJob,
    claim,
    commands,
    find_sweep,
    point_latest,
    read_plan,
    varied,
    write_plan,
)
from specbench.runs.state import (
    JobRunning,
    JobState,
    Status,
    clear_attempt,
    locked_job,
    read_state,
    write_ending,
    write_state,
    written_state,
)
from specbench.runs.status import SweepStatus
from tests.helpers.command_lines import ROOT
from tests.helpers.contexts import run_context
from tests.helpers.made_up_rows import make_row
from tests.helpers.small_sweeps import planned_sweep


def test_jobs_that_ask_the_same_stay_apart_and_are_found_again():
    jobs = [
        PlannedJob(-1, "a", "", ["seed=0"]),
        PlannedJob(-1, "b", "", ["seed=1"]),
        PlannedJob(-1, "a", "", ["seed=0"]),
    ]
    planned = Plan.new("smoke", None).widened(jobs)
    assert [(job.number, job.id) for job in planned.jobs] == [(0, "a"), (1, "b"), (2, "a-2")]
    again = planned.widened([jobs[2], jobs[0], PlannedJob(-1, "c", "", ["seed=2"])])
    assert again.jobs[:3] == planned.jobs
    assert (again.jobs[3].number, again.jobs[3].id) == (3, "c")


@pytest.mark.parametrize("older", [False, True])
def test_jobs_that_are_added_do_not_change_the_engine(tmp_path, older):
    """engine=auto counts the tokens of a sweep; with those of added jobs these were compiled, beside eager ones."""

    config = Config(protocol={"rounds": 2}, max_new_tokens=10)

    def tokens():
        return _tokens(run_context(folder=tmp_path / "0"), config, texts=3)

    begun = Plan.new("a", None).widened([PlannedJob(-1, "a", "", ["gamma=1"]), PlannedJob(-1, "b", "", ["gamma=2"])])
    write_plan(tmp_path, dataclasses.replace(begun, begun_with=0) if older else begun)
    assert tokens() == 3 * 10 * 2 * 2 * 2
    for name in ("c", "d"):
        write_plan(tmp_path, read_plan(tmp_path).widened([PlannedJob(-1, name, "", [f"gamma={name}"])]))
    assert len(read_plan(tmp_path).jobs) == 4
    assert tokens() == 3 * 10 * 2 * 2 * 2


@pytest.mark.parametrize(
    "edit",
    [
        lambda _: None,
        lambda plan: {**plan, "jobs": []},
        lambda plan: {**plan, "created": 3},
        lambda plan: {**plan, "jobs": [{**plan["jobs"][0], "overrides": 3}]},
        lambda plan: {**plan, "jobs": plan["jobs"][1:]},
    ],
    ids=["nothing", "no jobs", "a number for a time", "a number for overrides", "a job less"],
)
def test_a_damaged_plan_is_named_and_not_replaced_by_a_new_one(tmp_path, edit):
    """resume= took it for an empty one, began to number anew, and rows of two plans met in one folder."""
    sweep = planned_sweep(tmp_path, JobState("a"), JobState("b"))
    path = sweep / "plan.json"
    path.write_text(json.dumps(edit(json.loads(path.read_text()))))
    assert read_plan(sweep) is None
    with pytest.raises(ConfigError, match=r"its plan.json is damaged. Put it back from a copy"):
        find_sweep(str(sweep), key="resume")


@pytest.mark.parametrize("written", ["", "[]", '{"id": "a"}', '{"id": "a", "status": "odd"}', "{"])
def test_a_state_that_says_nothing_is_none(tmp_path, written):
    (tmp_path / "job.json").write_text(written)
    assert read_state(tmp_path) is None


HOLD = """
import sys, time
from pathlib import Path
from specbench.runs.state import JobState, locked_job, write_state
folder = Path(sys.argv[1])
with locked_job(folder):
    write_state(folder, JobState("a").begun())
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_job_runs_while_its_process_lives_and_has_died_when_that_was_killed(tmp_path):
    sweep = planned_sweep(tmp_path, JobState("a"))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", HOLD, str(tmp_path / "0")]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        begun = read_state(tmp_path / "0")
        assert (begun.status, begun.pid) == (Status.RUNNING, process.pid)
        assert datetime.now(UTC) - datetime.fromisoformat(begun.started) < timedelta(minutes=10)
        assert SweepStatus.of(sweep).sentence() == "0 of 1 jobs done, 1 running"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("specbench.runs.state.PATIENCE", 0.1)
            with pytest.raises(JobRunning, match=f"process {process.pid} on "), locked_job(tmp_path / "0"):
                pass
        process.send_signal(signal.SIGKILL)
        process.wait()
    state = read_state(tmp_path / "0")
    assert (state.status, state.attempt) == (Status.DIED, 1)
    with locked_job(tmp_path / "0"):  # the next process may lock it
        assert written_state(tmp_path / "0").begun().attempt == 2


def test_the_exit_status_and_the_words_follow_from_the_folder(tmp_path):
    done, failed = JobState("a", Status.DONE), JobState("b", Status.FAILED, reason="broken")
    cases = (
        ((done, JobState("b", Status.DONE)), 0, "2 of 2 jobs done"),
        ((done, JobState("b", Status.SKIPPED, reason="no vllm")), 0, "1 of 2 jobs done, 1 skipped"),
        ((JobState("a", Status.SKIPPED),), 1, "0 of 1 jobs done, 1 skipped"),
        ((done, failed), 1, "1 of 2 jobs done, 1 failed"),
        ((done, JobState("b")), 1, "1 of 2 jobs done, 1 not started"),
        ((done, JobState("b", Status.STARTED)), 1, "1 of 2 jobs done, 1 died"),
        ((JobState("a", Status.DONE, verdict="not lossless"),), 1, "1 of 1 jobs done"),
    )
    for number, (states, status, sentence) in enumerate(cases):
        got = SweepStatus.of(planned_sweep(tmp_path / str(number), *states))
        assert (got.exit_status, got.sentence()) == (status, sentence)


def test_a_command_to_go_on_can_be_typed_as_it_stands(tmp_path):
    folder = tmp_path / "my sweep's"
    sweep = planned_sweep(folder, JobState("a", Status.DONE), JobState("b", Status.FAILED, reason="x"))
    command = SweepStatus.of(sweep).remedy().partition(": ")[2]
    assert shlex.split(command) == ["python", "-m", "specbench", f"resume={sweep}"]


@pytest.mark.parametrize(
    "value", ["a/b-1.jsonl", "läufe.jsonl", "a (1), b", "it's", 'say "x"', "back\\", 'a\\"b', "x~y", ""]
)
def test_a_value_that_is_shown_to_be_typed_is_read_as_it_is(value):
    (argument,) = shlex.split(typed("key", value))
    read = OverridesParser.create().parse_override(argument).value()
    assert getattr(read, "text", read) == value


def test_a_report_on_a_part_says_so_below_its_title(tmp_path):
    sweep = planned_sweep(tmp_path, JobState("a", Status.DONE), JobState("b", Status.FAILED, reason="*broken*"))
    write_rows(sweep / "0" / RESULTS, [make_row(job=0)], RESULT_SCHEMA)
    values = {"positions": [], "opposed": [], "definitions": []}
    text = markdown.render(page(sweep, read_rows(sweep), "metrics", {"values": None}, **values))
    title, warning, question, *_ = text.split("\n\n")
    assert title.startswith("# ")
    assert warning == "**This report is of a part of its sweep: 1 of 2 jobs done, 1 failed.**"
    assert question.endswith("?")
    assert "## What is missing\n\n1 of 2 jobs done, 1 failed.\n\n- failed: job 1 (gamma=1): \\*broken\\*\n" in text
    assert f"python -m specbench resume={markdown.escape(str(sweep))}" in text
    write_state(sweep / "1", JobState("b", Status.DONE))
    write_rows(sweep / "1" / RESULTS, [make_row(job=1)], RESULT_SCHEMA)
    text = markdown.render(page(sweep, read_rows(sweep), "metrics", {"values": None}, **values))
    assert "part of its sweep" not in text
    assert "missing" not in text
    assert "\npython -m specbench gamma=0,1\n" in text


def test_a_sweep_of_which_nothing_is_done_says_what_became_of_it(tmp_path):
    sweep = planned_sweep(tmp_path, JobState("a"), JobState("b", Status.FAILED, reason="no such file. Give another."))
    with pytest.raises(ConfigError, match=r"no rows.*1 not started, 1 failed.*gamma=1\): no.*another\. To run"):
        read_rows(sweep)


def test_rows_that_are_gone_of_jobs_that_are_done_are_missed(tmp_path):
    """A table without them looked whole, below "2 of 2 jobs done"."""
    sweep = planned_sweep(tmp_path, *(JobState(name, Status.DONE) for name in "ab"), JobState("c", Status.FAILED))
    for job in range(2):
        write_rows(sweep / str(job) / RESULTS, [make_row(job=job)], RESULT_SCHEMA)
    status = SweepStatus.of(sweep)
    _collect(sweep, status)
    (sweep / "1" / RESULTS).unlink()
    with pytest.raises(SpecbenchError, match=r"no results\.parquet in .* that are done: 1\. .*resume="):
        _collect(sweep, status)
    assert len(pq.read_table(sweep / RESULTS)) == 1  # what is there is collected all the same


@pytest.mark.parametrize(
    ("jobs", "lines"),
    [
        ([["+exp=smoke"]], ["python -m specbench +exp=smoke"]),
        ([["gamma=1", "+exp=a", "seed=0"], ["gamma=2", "+exp=a", "seed=0"]], ["+exp=a gamma=1,2 seed=0"]),
        ([[f"a={a}", f"b={b}"] for a in (1, 3) for b in "xy"], ["a=1,3 b=x,y"]),
        ([["a=1", "b=1"], ["a=1", "b=2"], ["a=2", "b=1"]], ["a=1 b=1", "a=1 b=2", "a=2 b=1"]),  # no grid
        ([["a=[1,2]"], ["a=[3]"]], ["'a=[1,2]'", "'a=[3]'"]),
        ([["a=1"], ["a=1"]], ["a=1", "a=1"]),
        ([["a=1"], ["b=1"]], ["a=1", "b=1"]),
    ],
    ids=["one job", "grid", "two keys", "no grid", "commas", "the same twice", "other keys"],
)
def test_commands_that_repeat_a_sweep(jobs, lines):
    plan = Plan("smoke", "2026-01-01", "/home/me", None, [PlannedJob(i, str(i), "", job) for i, job in enumerate(jobs)])
    command_lines = commands(plan)
    assert [line.removeprefix("python -m specbench ") for line in command_lines] == [
        line.removeprefix("python -m specbench ") for line in lines
    ]
    folder_lines = commands(dataclasses.replace(plan, config_dir="/home/me/my conf"))
    assert all(
        line.startswith("cd /home/me && python -m specbench --config-dir '/home/me/my conf' ") for line in folder_lines
    )


def test_jobs_are_told_apart_by_all_keys_in_which_they_differ():
    jobs = [[f"gamma={gamma}", f"verifier={name}", "seed=0"] for gamma in (1, 3) for name in ("naive", "masked")]
    labels = ["gamma=1,verifier=naive", "gamma=1,verifier=masked", "gamma=3,verifier=naive", "gamma=3,verifier=masked"]
    assert labels_of(jobs) == labels
    plan = Plan("smoke", "2026-01-01", "/home/me", None, [PlannedJob(i, str(i), "", job) for i, job in enumerate(jobs)])
    assert varied(plan) == {"gamma": ["1", "3"], "verifier": ["naive", "masked"]}


def test_folders_are_claimed_once(tmp_path):
    assert [claim(tmp_path / "t", False).name for _ in range(3)] == ["t", "t_2", "t_3"]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").touch()
    assert claim(tmp_path / "mine", True) == tmp_path / "mine"  # beside notes there is room
    write_plan(tmp_path / "mine", Plan.new("smoke", None))
    with pytest.raises(ConfigError, match="holds an earlier sweep.*resume="):
        claim(tmp_path / "mine", True)


def test_the_newest_sweep_is_found_with_and_without_links(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for exp, name, created in (("a", "1", "2026-01-01"), ("a", "2", "2026-01-02"), ("b", "1", "2026-01-03")):
        folder = Path("outputs", exp, name)
        folder.mkdir(parents=True)
        write_plan(folder, Plan(exp, created, ".", None, [PlannedJob(0, "a", "", [])]))
    point_latest(Path("outputs/a/1"))
    assert os.readlink("outputs/a/latest") == "1"
    assert find_sweep("latest") == Path("outputs/b/1")
    assert find_sweep("latest", "a") == Path("outputs/a/2")
    with pytest.raises(ConfigError, match=r"or latest for the one that was begun last\.$"):
        find_sweep("outputs/latest")
    with pytest.raises(ConfigError, match=r"no sweep under \./outputs/c\. Give the folder of one\.$"):
        find_sweep("latest", "c")
    monkeypatch.setattr(plans, "OUTPUTS", tmp_path / "elsewhere")
    point_latest(Path("outputs/b/1"))  # a folder that the user chose: no link beside it
    assert not Path("outputs/b/latest").exists()


def test_what_an_earlier_attempt_left_is_cleared(tmp_path):
    sweep = planned_sweep(tmp_path, JobState("a"))
    (sweep / "0" / "wandb" / "offline-run-1").mkdir(parents=True)
    for name in ("error.txt", "steps.parquet", ".results.parquet.1.tmp", "identity.json"):
        (sweep / "0" / name).touch()
    clear_attempt(sweep / "0")
    assert sorted(path.name for path in (sweep / "0").iterdir()) == ["identity.json", "job.json"]
    assert json.loads((sweep / "0" / "job.json").read_text())["status"] == "planned"


def test_a_full_disk_does_not_make_a_failed_job_look_killed(tmp_path, monkeypatch):
    """What the attempt left makes room for its end. Only where that is not enough is it an error."""
    sweep = planned_sweep(tmp_path, JobState("a").begun())
    job, write = sweep / "0", of_jobs.write_json
    (job / "steps.parquet").touch()
    needed = {"steps.parquet"}

    def full(path: Path, content: object) -> None:
        if needed & {path.name for path in job.iterdir()}:
            raise WriteError(path.parent, os.strerror(errno.ENOSPC))
        write(path, content)

    monkeypatch.setattr(of_jobs, "write_json", full)
    write_ending(job, written_state(job).ending(Status.FAILED, "cannot write to here (No space left on device)"))
    (sentence,) = [sentence for _, sentence in SweepStatus.of(sweep).problems()]
    assert sentence.startswith("failed: ")
    assert sentence.endswith("(No space left on device)")
    needed.add("job.json")
    with pytest.raises(WriteError, match="No space left"):
        write_ending(job, written_state(job).ending(Status.FAILED, "another"))


def test_what_no_sweep_goes_on_with_has_a_remedy_of_its_own(tmp_path):
    """Pages and papers named a command that does not write them again."""
    (tmp_path / "file").touch()
    with pytest.raises(WriteError, match=r"/file \(Not a directory\)\. Free space there, .* resume=FOLDER\.$"):
        write_json(tmp_path / "file/x.json", {})
    with (
        pytest.raises(WriteError, match=r"/file \(Not a directory\)\. Name another folder\.$"),
        writing(tmp_path, "Name another folder."),
    ):
        write_json(tmp_path / "file/x.json", {})


def test_files_of_killed_writers_are_cleared_and_those_of_living_ones_kept(tmp_path):
    """A job whose process is killed while it writes how it ended is done, and never runs again to clear its folder."""
    killed = textwrap.dedent("""
        import os, signal, sys
        from pathlib import Path
        from specbench.core.machine.disk import beside
        with beside(Path(sys.argv[1], "job.json")) as temporary:
            temporary.touch()
            os.kill(os.getpid(), signal.SIGKILL)
    """)
    (tmp_path / "0").mkdir()
    assert subprocess.run([sys.executable, "-c", killed, tmp_path / "0"], check=False).returncode == -signal.SIGKILL
    assert len(list(tmp_path.rglob(".*.tmp"))) == 1
    (tmp_path / ".mine.tmp").touch()
    with beside(tmp_path / "plan.json") as temporary:
        temporary.touch()
        clear_temporaries(tmp_path)
        assert sorted(tmp_path.rglob(".*.tmp")) == sorted([temporary, tmp_path / ".mine.tmp"])
