"""Sweeps that are killed, interrupted, run twice at once or out of disk: nothing is lost, and what is said is true.

tests/helpers/sweep_scenarios.py puts them through it, each scenario once, those of one tuple below in one process.
"""

import importlib.util
import json
from pathlib import Path

import pytest

from tests.helpers.command_lines import apart, clean_environment, new_process, once

TOGETHER = (
    ("killed", "one_second", "widened", "interrupted"),
    ("no_room", "beside_numbers"),
    ("joblib", "lost"),
    ("submitit_local", "ray"),
    ("killed_at_each", "killed_often"),
)


def outcome(factory: pytest.TempPathFactory, name: str) -> dict:
    """The result of a scenario; the first worker runs it, with the scenarios of the same process."""
    (names,) = (group for group in TOGETHER if name in group)

    def make(folder: Path) -> None:
        environment = clean_environment(folder, hide_gpus=True)
        anew = names in TOGETHER[2:4]  # launchers start processes that import the main module
        apart("tests.helpers.sweep_scenarios", (str(folder), *names), environment, anew)

    return json.loads((once(factory, f"sweep_{names[0]}", make) / f"{name}.json").read_text())


def no_traceback(*texts: str) -> bool:
    return not any("Traceback" in text for text in texts)


@pytest.mark.parametrize(
    ("name", "jobs", "kills"),
    [
        ("killed", 2, 2),
        pytest.param("killed_at_each", 4, 4, marks=pytest.mark.long),
        pytest.param("killed_often", 4, 10, marks=pytest.mark.long),
    ],
)
def test_a_sweep_that_is_killed_ends_with_the_rows_of_an_undisturbed_one(tmp_path_factory, name, jobs, kills):
    got = outcome(tmp_path_factory, name)
    assert len(got["ended"]) == kills
    assert set(got["ended"]) <= {-9, 0}  # 0: it was done before its turn came
    assert got["ended"].count(-9) >= kills / 2
    assert got["last"]["status"] == 0, got["last"]["text"]
    assert got["last"]["text"].endswith(f"{jobs} of {jobs} jobs done.")
    assert got["same"]
    assert got["rows"] == jobs
    assert got["attempts"] > jobs  # some jobs began more than once
    assert got["left"] == []
    for report in got["said"]:
        assert f" of {jobs} jobs done" in report["text"]
        assert no_traceback(report["text"])


def test_sweeps_of_one_second_have_folders_of_their_own(tmp_path_factory):
    got = outcome(tmp_path_factory, "one_second")
    assert got["ended"] == [0, 0]
    assert got["seeds"] == [[1], [2]]


def test_two_processes_that_go_on_with_one_sweep_share_its_jobs(tmp_path_factory):
    got = outcome(tmp_path_factory, "one_second")
    assert got["first"] == -9
    assert got["done"] == got["rows"] == 2
    assert sum(got["attempts"]) in (2, 3)  # 3 if the first process was killed in a job
    assert no_traceback(*(process["text"] for process in got["both"]))


def test_a_sweep_is_widened_and_keeps_what_is_done(tmp_path_factory):
    got = outcome(tmp_path_factory, "widened")
    assert got["statuses"] == [0, 0, 0]
    assert got["plan"] == ["gamma=1", "gamma=2", "gamma=0", "gamma=3"]
    assert got["kept"]
    assert "none of its jobs left to run" in got["nothing"]
    assert got["workloads"] == ["file:prompts.jsonl"]


def test_rows_of_two_questions_do_not_mix(tmp_path_factory):
    got = outcome(tmp_path_factory, "widened")
    for name in ("changed", "other"):
        assert got[name]["status"] == 2
        assert "workload.path changed since job 0 (gamma=1) was planned" in got[name]["text"]
        assert "start a new sweep" in got[name]["text"]
    assert got["gammas"] == [1, 2, 0, 3]  # the refused ones were not even planned


@pytest.mark.parametrize(
    ("name", "status", "sentence"),
    [
        ("SIGTERM", 143, "1 of 3 jobs done, 1 not started, 1 failed."),
        ("SIGINT", 130, "2 of 3 jobs done, 1 failed."),
    ],
)
def test_a_signal_ends_a_sweep_in_order(tmp_path_factory, name, status, sentence):
    got = outcome(tmp_path_factory, "interrupted")
    assert got[name]["status"] == status
    assert got[name]["reason"] == f"interrupted ({name})"
    assert "Results: " in got[name]["text"]
    assert sentence in got[name]["text"]
    assert "To run what is missing: python -m specbench resume=outputs/smoke/" in got[name]["text"]
    assert no_traceback(got[name]["text"])
    assert got["again"] == 0


def test_all_jobs_are_planned_before_the_first_one_ends(tmp_path_factory):
    """So that a sweep that was killed early can be resumed."""
    assert outcome(tmp_path_factory, "interrupted")["planned"] == "3"


@pytest.mark.thorough
def test_a_full_disk(tmp_path_factory):
    got = outcome(tmp_path_factory, "no_room")
    text = got["full"]["text"]
    assert got["full"]["status"] == 1
    assert "File too large). Free space there" in text
    assert "What was measured: " in text
    assert "0 of 2 jobs done, 2 failed." in text
    assert no_traceback(text)
    assert got["full again"] == 0  # once there is room


@pytest.mark.thorough
def test_a_folder_that_turns_read_only(tmp_path_factory):
    got = outcome(tmp_path_factory, "no_room")["read-only"]
    assert got["status"] == 1
    assert "Permission denied" in got["text"]
    assert "rows stay in the jobs' folders" in got["text"]
    assert "Results: " not in got["text"]  # which would name a file that is not there
    assert "1 of 2 jobs done" in got["text"]  # the one that was written before
    assert no_traceback(got["text"])


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("scenario", "name", "status", "says"),
    [
        ("no_room", "gone", 1, ("was the sweep moved?",)),  # the sweep's folder
        ("beside_numbers", "figures", 0, ("figures are missing (RuntimeError: broken on purpose)", "Results: ")),
        ("beside_numbers", "tracking", 0, ("not tracked in W&B", "Results: ")),
        ("beside_numbers", "report", 1, ("tokens a step", "report: RuntimeError: broken on purpose")),
        ("beside_numbers", "exits", 1, ("failed: SystemExit: 0",)),  # a component of a job calls sys.exit
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_goes_wrong_is_named_and_costs_no_more_than_it_must(tmp_path_factory, scenario, name, status, says):
    """What fails beside the numbers fails no job; a report that fails hides no number, and is no success."""
    got = outcome(tmp_path_factory, scenario)[name]
    assert got["status"] == status
    for words in says:
        assert words in got["text"]
    assert no_traceback(got["text"])


@pytest.mark.thorough
def test_rows_stand_though_the_process_was_killed_while_it_tracked_them(tmp_path_factory):
    got = outcome(tmp_path_factory, "beside_numbers")
    assert got["killed tracking"] == -9
    assert got["untracked"]["status"] == 0
    assert "Results: " in got["untracked"]["text"]
    assert "warning: gamma=1,verifier=masked" in got["untracked"]["text"]
    assert "its process ended before its figures and its tracking were finished" in got["untracked"]["text"]


@pytest.mark.thorough
def test_a_file_system_without_links(tmp_path_factory):
    got = outcome(tmp_path_factory, "beside_numbers")
    assert got["links"]["status"] == got["links report"]["status"] == 0
    assert "Results: " in got["links report"]["text"]


@pytest.mark.thorough
def test_latest_is_nobodys_file_and_no_failed_sweep(tmp_path_factory):
    got = outcome(tmp_path_factory, "beside_numbers")
    assert got["a file named latest"]["status"] == 0
    assert got["its content"] == "mine"
    assert not got["latest of a failure"]


NEEDS_RAY = pytest.mark.skipif(not importlib.util.find_spec("ray"), reason="needs Ray: pip install 'specbench[ray]'")
LONG = [
    pytest.param("submitit_local", marks=pytest.mark.long),
    pytest.param("ray", marks=[pytest.mark.long, NEEDS_RAY]),
]


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["joblib", *LONG])
def test_launchers_leave_what_one_process_leaves(tmp_path_factory, name):
    got = outcome(tmp_path_factory, name)
    assert got["ended"]["status"] == 0, got["ended"]["text"]
    assert got["same"]
    assert "2 of 2 jobs done." in got["ended"]["text"]
    assert set(got["home"]) <= {"outputs", ".cache", ".config"}  # in the user's home only matplotlib's fonts


@pytest.mark.thorough
@NEEDS_RAY
def test_a_worker_that_dies_and_a_job_that_fails_are_told(tmp_path_factory):
    got = outcome(tmp_path_factory, "lost")
    assert got["status"] == 1
    assert "died: job " in got["text"]
    assert "failed: job " in got["text"]
    assert "gamma=99" in got["text"]
    assert "1 of 4 jobs done, 2 failed, 1 died." in got["text"]
    assert "Traceback" not in got["text"]


INTERRUPTED_IMPORT = """
import os, signal, sys

class Sends:
    def find_spec(self, name, *_):
        if name == "torch.nn.functional":
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGTERM)

sys.meta_path.insert(0, Sends())
sys.argv = ["specbench", "gamma=1,2"]
from specbench.__main__ import main
main()
"""


@pytest.mark.thorough
def test_a_signal_while_pytorch_is_imported_ends_a_sweep_in_order(tmp_path):
    """A half of PyTorch cannot be imported again, and the end of a sweep needs it."""
    done = new_process(tmp_path, "-c", INTERRUPTED_IMPORT, status=143)
    assert no_traceback(done.stderr)
    assert "interrupted (SIGTERM)" in done.stderr
    assert "0 of 2 jobs done, 2 not started." in done.stderr


COUNTING = """
import sys
from hydra._internal.config_loader_impl import ConfigLoaderImpl as Loader
from specbench.__main__ import run

compose, composed = Loader.load_configuration, []
Loader.load_configuration = lambda *args, **kwargs: composed.append(1) or compose(*args, **kwargs)
sys.argv = ["specbench"]
run(["gamma=-1"])
print(len(composed))
"""


def test_a_refused_command_is_composed_no_oftener_than_it_must(tmp_path):
    """Once, for the sweep and its only job: a fifth of a second, most of what such a command takes."""
    assert new_process(tmp_path, "-c", COUNTING).stdout.splitlines()[-1] == "1"
