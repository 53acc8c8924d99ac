"""What is refused before a run, and what becomes of a W&B that fails: with a made-up wandb, which is quick."""

from __future__ import annotations

import json
import os
import re
import subprocess
import textwrap
from pathlib import Path
from typing import Any

import pytest

from specbench.core.errors import ConfigError, TrackingError
from specbench.metrics import results
from specbench.runs.config import TrackingConfig
from specbench.runs.state import JobState, Status, write_state
from specbench.runs.tracking import process
from specbench.runs.tracking import run as runs
from specbench.runs.tracking.run import TrackedRun, check_settings
from tests.helpers.made_up_rows import make_row

FILES = ["job.json", "results.parquet"]
# Every made-up wandb has these; `record` is what a test reads afterwards.
COMMON = """
import json, os, pathlib, sys, tempfile, types
tempfile.mkdtemp()  # as the real one does
record = pathlib.Path(os.environ["RECORD"])
class Run:
    id, summary, tags = "r", {}, ()
    settings = types.SimpleNamespace(log_internal=str(record) + ".log")
    def __enter__(self): return self
    def __exit__(self, *_): pass
    def log(self, _): pass
    def log_artifact(self, _): pass
    def define_metric(self, *_, **__): pass
    def finish(self, exit_code): record.with_name("ended").write_text(json.dumps([self.summary, exit_code]))
class Artifact:
    def __init__(self, *_, **__): pass
    def add_file(self, *_, **__): pass
Settings = dict
def init(**options):
    with record.open("a") as file:
        file.write(json.dumps([options, dict(os.environ), sys.argv]) + "\\n")
    return Run()
Histogram = Table = Image = Html = plot_table = lambda *_, **__: None
def teardown(): pass
def login(prompt): return False
"""


@pytest.fixture
def wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Puts a wandb of a test's own before the real one, and a key for it; returns a function that does so."""

    def put(code: str = "") -> Path:
        package = tmp_path / "path" / "wandb"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text(COMMON + textwrap.dedent(code))
        monkeypatch.setenv("PYTHONPATH", str(package.parent))
        monkeypatch.setenv("RECORD", str(tmp_path / "record"))
        monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
        monkeypatch.setattr(process, "_stalled", [])
        monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
        (tmp_path / "tmp").mkdir()
        return tmp_path / "record"

    return put


def run_of(folder: Path, mode: str, state: JobState, **more: Any) -> TrackedRun:
    """The run of a job that has one row."""
    folder.mkdir(exist_ok=True)
    write_state(folder, state)
    results.write_rows(folder / results.RESULTS, [make_row()], results.RESULT_SCHEMA)
    named = {"group": "g/1", "name": "n", "kind": "masked", **more}
    return TrackedRun(settings=TrackingConfig(mode=mode), folder=folder, **named)


def log(folder: Path, mode: str = "offline", **more: Any) -> str:
    """Logs such a job; returns the warning."""
    return run_of(folder, mode, JobState("x", Status.DONE), **more).end()


def test_a_process_that_fails_before_it_is_asked_to_end_says_why(wandb, tmp_path):
    """As a live run does that cannot begin."""
    wandb("def login(**_): raise ConnectionError('no answer')")
    login = process.WandbProcess(process.LOGIN, tmp_path, "offline")
    assert login.process.wait(60) == 1
    with pytest.raises(TrackingError, match="no answer"):
        login.end()


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("raise ImportError('libfoo.so is missing')", "ImportError: libfoo.so is missing"),
        ("raise SystemExit('no licence')", "SystemExit: no licence"),
        ("os._exit(7)", "status 7"),
        ("os.kill(os.getpid(), 11)", "status -11"),
        ("def init(**_): raise RuntimeError('wandb-core exited: 1\\nand more')", "RuntimeError: wandb-core exited: 1"),
        ("def init(**_): import time; time.sleep(600)", "did not end within 1 s"),
        ("Run.log = lambda *_: print('A' * 10**6, print('B' * 10**6, file=sys.stderr)) or 1 / 0", "ZeroDivisionError"),
        ("""pathlib.Path(f"{record}.log").write_text('{"level":"ERROR","msg":"no space left"}\\n')""", "no space left"),
    ],
)  # fmt: skip
def test_whatever_fails_is_a_tracking_error(wandb, tmp_path, monkeypatch, code, message):
    """Nothing else is raised, nothing is left but the job's own files, and it ends."""
    wandb(code)
    monkeypatch.setitem(process.LIMITS, "offline", 1 if "sleep" in code else 60)
    warning = log(tmp_path / "job")
    assert re.fullmatch(rf"not tracked in W&B \(.*{message}.*\)", warning)
    assert sorted(path.name for path in (tmp_path / "job").iterdir()) == FILES
    assert not list((tmp_path / "tmp").iterdir())


@pytest.mark.thorough
def test_a_process_that_is_stopped_does_not_stall_every_job_for_long(wandb, tmp_path, monkeypatch):
    wandb("def init(**_): os.kill(os.getpid(), 19)")  # SIGSTOP
    monkeypatch.setitem(process.LIMITS, "offline", 2)
    monkeypatch.setattr(process, "LATER", 1)
    for name, limit in (("first", 2), ("second", 1), ("third", 1)):
        assert f"did not end within {limit} s; further runs wait for 1 s" in log(tmp_path / name)


def test_errors_before_w_and_b_starts_are_tracking_errors_too(wandb, tmp_path, monkeypatch):
    wandb()
    with monkeypatch.context() as changed:
        changed.setattr(process.sys, "executable", str(tmp_path / "gone"))
        assert "FileNotFoundError" in log(tmp_path / "job")
    assert sorted(path.name for path in (tmp_path / "job").iterdir()) == FILES
    (tmp_path / "job/steps.parquet").write_bytes(b"no table")
    assert re.search(r"job/steps\.parquet: damaged \(ArrowInvalid: .*Run the job again", log(tmp_path / "job"))


@pytest.mark.parametrize(
    ("state", "summary"),
    [
        (JobState("x", Status.STARTED, pid=4, host="h"), {"status": "died", "reason": "process 4 on h is gone"}),
        (JobState("x", Status.FAILED, "interrupted"), {"status": "failed", "reason": "interrupted"}),
    ],
)
def test_a_live_run_whose_job_is_gone_marks_itself(wandb, tmp_path, state, summary):
    """W&B's process outlives the measuring one and leaves only what W&B wrote."""
    record = wandb()
    run = run_of(tmp_path / "job", "online", state)
    run.begin()
    assert run.live is not None
    ended = run.live.process
    run.close()
    assert ended.wait(60) == 0
    logged, exit_code = json.loads(record.with_name("ended").read_text())
    assert (logged | summary, exit_code) == (logged, 1)
    assert sorted(path.name for path in (tmp_path / "job").iterdir()) == FILES


def test_a_live_run_ends_though_another_process_holds_its_pipe(wandb, tmp_path, monkeypatch):
    """A process forked from the measuring one holds it, for example."""
    wandb()
    monkeypatch.setitem(process.LIMITS, "online", 60)
    run = run_of(tmp_path / "job", "online", JobState("x", Status.DONE))
    run.begin()
    with subprocess.Popen(["sleep", "300"], pass_fds=[run.live.process.stdin.fileno()]) as holder:
        assert run.end() == ""
        holder.kill()


def test_curves_are_thinned_evenly_and_keep_their_end(tmp_path):
    """And a line that is not whole yet waits for the next look."""
    from specbench.runs.tracking.wandb_process import MOST_AT_ONCE, Curves

    path = tmp_path / "progress.jsonl"
    curves = Curves(path)
    assert curves.news() == []
    path.write_text("".join(f'{{"tokens": {i}}}\n' for i in range(2501)) + '{"tok')
    tokens = [point["tokens"] for point in curves.news()]
    assert len(tokens) <= MOST_AT_ONCE
    assert (tokens[-1], set(map(int.__sub__, tokens[1:], tokens))) == (2500, {3})
    with path.open("a") as file:
        file.write('ens": 7}\n')
    assert curves.news() == [{"tokens": 7}]


def read(record: Path) -> list[Any]:
    return [json.loads(line) for line in record.read_text().splitlines()]


def test_offline_settings_are_w_and_bs_alone(wandb, tmp_path, monkeypatch):
    """They win over the user's, which are as they were afterwards."""
    theirs = {"WANDB_ERROR_REPORTING": "true", "WANDB_DATA_DIR": "/theirs", "WANDB_CACHE_DIR": "/theirs"}
    for name, value in theirs.items():
        monkeypatch.setenv(name, value)
    record, before = wandb(), dict(os.environ)
    assert not log(tmp_path / "job")
    assert dict(os.environ) == before
    ((options, environment, argv),) = read(record)
    assert options["mode"] == "offline"
    assert environment["WANDB_ERROR_REPORTING"] == "false"
    places = {environment[f"WANDB_{name}_DIR"] for name in ("DATA", "CACHE", "CONFIG")}
    assert all(Path(place).is_relative_to(tmp_path / "job/wandb") for place in places)
    assert argv == process.sys.argv


def test_online_the_users_settings_hold(wandb, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_DATA_DIR", "/theirs")
    monkeypatch.delenv("WANDB_ERROR_REPORTING", raising=False)
    record = wandb()
    assert not log(tmp_path / "job", "online")
    ((options, environment, _),) = read(record)
    assert (options["mode"], environment["WANDB_DATA_DIR"]) == ("online", "/theirs")
    assert "WANDB_ERROR_REPORTING" not in environment


UNREACHABLE = """
keep = init
def init(**options):
    if options["mode"] == "online":
        open(f"{record}.tried", "a").write("x")
        raise ConnectionError("no answer")
    return keep(**options)
"""


def test_what_cannot_be_sent_is_kept_offline(wandb, tmp_path):
    record = wandb(UNREACHABLE)
    kept = rf"no answer; kept offline, `wandb sync {tmp_path}/job/wandb/offline-run-\*`"
    assert re.search(kept, log(tmp_path / "job", "online"))
    assert [options["mode"] for options, _, _ in read(record)] == ["offline"]


@pytest.mark.parametrize(("long", "tries"), [(0.0, 1), (1000.0, 2)], ids=["after a wait", "at once"])
def test_a_sweep_waits_once_for_a_server_that_does_not_answer(wandb, tmp_path, monkeypatch, long, tries):
    record = wandb(UNREACHABLE)
    monkeypatch.setattr(runs, "LONG_WAIT", long)
    monkeypatch.setattr(runs, "_waited", {})
    for job in ("one", "two"):
        assert "no answer; kept offline" in log(tmp_path / job, "online")
    assert [options["mode"] for options, _, _ in read(record)] == ["offline", "offline"]
    assert len(record.with_name(f"{record.name}.tried").read_text()) == tries


def test_long_names_and_odd_characters_reach_w_and_b(wandb, tmp_path):
    """Half a surrogate pair, which a command line can hold, is no text for W&B."""
    record = wandb()
    assert not log(tmp_path / "job", name="verifier=" + "x" * 200, config={"prompt": "a\ud800b", "gamma": float("nan")})
    ((options, _, _),) = read(record)
    assert len(options["name"]) == 128
    assert options["name"].endswith("x...")
    assert options["config"]["prompt"] == "a?b"


def test_disabled_starts_nothing(wandb, tmp_path):
    record = wandb()
    assert not log(tmp_path / "job", "disabled")
    assert not record.exists()


@pytest.mark.parametrize("key", ["project", "entity"])
@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("", "an empty name"), ("  ", "an empty name"), (".", "a folder"), ("..", "a folder"), ("a" * 129, "128"),
        ("a/b", "refuses"), ("a\x00b", "printed"), ("a\nb", "printed"), ("a\ud800", "printed"), ("a\x1b[1m", "printed"),
    ],
)  # fmt: skip
def test_names_are_refused_before_anything_runs(key, name, problem):
    with pytest.raises(ConfigError, match=problem) as raised:
        check_settings(TrackingConfig(**{key: name}))
    message = str(raised.value)
    assert message.startswith(f"tracking.{key}=")
    assert message.isprintable()


def test_usual_names_are_taken():
    for name in ("specbench", "a" * 128, "größer als", "日本", "v1.2_x-y", "..."):
        check_settings(TrackingConfig("offline", name, name))
    check_settings(TrackingConfig("disabled"))


@pytest.mark.parametrize(
    ("code", "message"), [("", "no W&B key on this machine"), ("raise ImportError('torn')", "ImportError: torn")]
)
def test_online_needs_a_key_and_a_w_and_b_that_works(wandb, monkeypatch, code, message):
    wandb(code)
    monkeypatch.delenv("WANDB_API_KEY")
    runs._no_key.cache_clear()
    with pytest.raises(
        ConfigError, match=f"tracking.mode=online: {message}. Set WANDB_API_KEY or run `wandb login`, or"
    ):
        check_settings(TrackingConfig("online"))
    runs._no_key.cache_clear()
    monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
    check_settings(TrackingConfig("online"))
