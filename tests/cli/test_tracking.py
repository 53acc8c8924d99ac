"""What W&B gets: the offline runs of the smoke sweep, read back from W&B's own files; no other server receives any."""

import dataclasses
import json
import os
import sys
from pathlib import Path

import pyarrow as pa
import pytest
import torch

from specbench.core.machine.journal import AXES
from specbench.metrics import results
from specbench.runs.config import TrackingConfig
from specbench.runs.state import JobState, Status, write_state
from specbench.runs.tracking.panels import MOST_ROWS
from specbench.runs.tracking.run import TrackedRun
from specbench.runs.tracking.wandb_process import table_of
from tests.helpers.command_lines import SmokeRun, clean_environment
from tests.helpers.wandb_runs import Tracked, read_run
from tests.helpers.without_network import network_of_its_own, without_network

IMAGES = ("acceptance_histogram", "position_rates", "empirical_against_target")
TABLES = (results.RESULTS, results.STEPS, results.EMPIRICAL, results.TEXTS, "trace.parquet", "rounds.parquet")


@pytest.fixture(scope="module")
def tracked(smoke: SmokeRun) -> list[list[Tracked]]:
    """The W&B runs of each job."""
    jobs = sorted(path for path in smoke.sweep.iterdir() if path.name.isdigit())
    return [[read_run(path) for path in sorted(job.glob("wandb/offline-run-*/*.wandb"))] for job in jobs]


def test_one_finished_run_a_job_and_one_group_a_sweep(smoke, tracked):
    assert [len(runs) for runs in tracked] == [1] * 2
    runs = [run for (run,) in tracked]
    assert [run.exit_code for run in runs] == [0] * 2
    assert {run.run.run_group for run in runs} == {f"smoke/{smoke.sweep.resolve().name}"}
    assert len({run.run.run_id for run in runs}) == 2
    assert {run.run.project for run in runs} == {"specbench"}


def test_a_run_says_what_its_row_says(smoke, tracked):
    """Its configuration, name, tags and histogram, each count of which is in the middle of its bin."""
    for (run,), row in zip(tracked, results.read_results(smoke.sweep).itertuples(), strict=True):
        assert (run.config["gamma"], run.config["workload"]["limit"]) == (row.gamma, 4)
        assert run.config["verifier"]["_target_"].lower().endswith(f"{row.verifier}verifier")
        assert (run.run.display_name, run.run.job_type) == (f"verifier={row.verifier}", row.verifier)
        device = row.device.partition(":")[0]
        assert set(run.run.tags) == {
            "protocol:decode", f"verifier:{row.verifier}", "drafter:model", "pair:embedded", f"engine:{row.engine}",
            "rule:token", f"device:{device}", "lossless",
        }  # fmt: skip
        assert device == ("cuda" if torch.cuda.is_available() else "cpu")
        acceptance = run.history["charts/acceptance_histogram"]
        assert (acceptance["_type"], acceptance["values"]) == ("histogram", list(row.acceptance_histogram))
        assert acceptance["bins"] == [place - 0.5 for place in range(row.gamma + 2)]


def test_summary_is_the_row(smoke, tracked):
    """Every scalar of the row, not only the two that everyone looks at."""
    rows = results.pq.read_table(smoke.sweep / results.RESULTS).to_pylist()
    for (run,), row in zip(tracked, rows, strict=True):
        assert {"acceptance_rate", "speedup", "gamma", "verifier", "commit"} <= set(run.summary)
        scalars = {key: value for key, value in row.items() if not isinstance(value, list) and value is not None}
        assert {key: run.summary.get(key) for key in scalars} == scalars


def test_images_are_logged_and_there(smoke, tracked):
    for job, (run,) in enumerate(tracked):
        for name in IMAGES:
            logged = run.history[name]
            assert logged["_type"] == "image-file"
            assert (run.files / logged["path"]).read_bytes() == (smoke.sweep / f"{job}/{name}.png").read_bytes()


def test_texts_are_logged_as_a_table(smoke, tracked):
    texts = results.read_jobs(smoke.sweep, results.TEXTS)
    for job, (run,) in enumerate(tracked):
        logged = run.history["texts"]
        assert logged["_type"] == "table-file"
        table = json.loads((run.files / logged["path"]).read_text())
        job_texts = texts[texts["job"] == job][table["columns"]].astype(object)
        assert table["data"] == job_texts.where(job_texts.notna(), None).to_numpy().tolist()


def test_the_parquet_files_are_an_artifact(smoke, tracked):
    """The manifest leads to the job's own files: no copy of them is made."""
    for job, (run,) in enumerate(tracked):
        folder = (smoke.sweep / str(job)).resolve()
        (artifact,) = [a for a in run.artifacts if a.type == "results"]
        entries = {entry.path: entry for entry in artifact.manifest.contents}
        assert {name: Path(entry.local_path) for name, entry in entries.items()} == {n: folder / n for n in TABLES}
        assert {entry.size for entry in entries.values()} == {(folder / name).stat().st_size for name in entries}


def test_typed_rows_are_tables(smoke, tracked):
    """Of the job alone, up to a length: empirical against target, times round by round, and steps."""
    for name in (results.EMPIRICAL, "rounds.parquet", results.STEPS):
        rows = results.read_jobs(smoke.sweep, name)
        for job, (run,) in enumerate(tracked):
            assert {key for key in run.history if key.startswith("charts/")} == {"charts/acceptance_histogram"}
            logged = run.table(f"tables/{name.removesuffix('.parquet')}")
            assert logged["data"] == rows[rows["job"] == job][logged["columns"]].to_numpy().tolist()[:MOST_ROWS]


def test_a_table_may_have_rates_that_are_unknown():
    """replay.parquet has null in lists, for drafts longer than the texts."""
    rows = pa.table({"rule": ["token", "token"], "joint_rates": [[1.0], [1.0, None]]})
    assert table_of(rows).data == [["token", [1.0]], ["token", [1.0, None]]]


def test_curves_grow_to_the_numbers_of_the_row(smoke, tracked):
    """Offline the whole curve is logged when the job has ended: a point a batch and round."""
    for (run,), row in zip(tracked, results.read_results(smoke.sweep).itertuples(), strict=True):
        curve = [line for line in run.lines if "live/tokens" in line]
        assert len(curve) == row.rounds * len(row.batch_tokens)
        assert [line["live/requests"] for line in curve] == [2 * (i + 1) for i in range(len(curve))]
        assert curve[-1]["live/tokens"] == row.rounds * row.tokens
        assert curve[-1]["live/acceptance_length"] == pytest.approx(row.acceptance_length)
        assert {f"live/{name}": f"live/{axis}" for name, axis in AXES.items()}.items() <= run.axes.items()


def test_the_sweep_has_a_run_of_its_own(smoke):
    """With the rows of all jobs in one table, and what became of each."""
    (path,) = smoke.sweep.glob("wandb/offline-run-*/*.wandb")
    run = read_run(path)
    assert (run.run.job_type, run.exit_code) == ("sweep", 0)
    assert run.run.run_group == f"smoke/{smoke.sweep.resolve().name}"
    assert run.summary["jobs_done"] == run.summary["jobs"] == 2
    table = run.table("tables/results")
    rows = results.read_results(smoke.sweep)
    assert (run.config["exp"], run.config["varied"]) == ("smoke", {"verifier": ["naive", "masked"]})
    assert run.config["command"].startswith("python -m specbench +exp=smoke ")
    assert " gamma=3 verifier=naive,masked" in run.config["command"]
    best = rows.loc[rows["speedup"].idxmax()]
    assert all(run.summary["best"][name] == best[name] for name in ("verifier", "job"))
    assert run.summary["best"]["speedup"] == pytest.approx(best["speedup"])
    for column in ("verifier", "gamma", "speedup", "acceptance_rate"):
        place = table["columns"].index(column)
        assert [row[place] for row in table["data"]] == rows[column].tolist()
    jobs = run.table("tables/jobs")
    assert [dict(zip(jobs["columns"], row, strict=True))["status"] for row in jobs["data"]] == ["done"] * 2


def test_no_host_is_looked_up(smoke):
    """By Python's own account, and where the kernel allows a network of one's own, by that of every packet."""
    assert smoke.reached == []


def test_the_watch_sees_python_and_other_programs(tmp_path):
    """Without it, the test above could not fail."""
    environment, log = clean_environment(tmp_path), tmp_path / "log"
    ask = "import socket; socket.create_connection(('host.invalid', 80))"
    done = without_network([sys.executable, "-c", ask], tmp_path, environment, log)
    assert "no network in this test" in done.stderr
    assert log.read_text() == "socket.getaddrinfo host.invalid\n"
    if not network_of_its_own():
        pytest.skip("no namespaces for this user (unshare): what other programs send was not watched, only Python")
    without_network(["getent", "ahosts", "other.invalid"], tmp_path, environment, log)
    assert "other.invalid" in log.read_text()


def test_nothing_is_left_behind(smoke):
    """Among temporary files, but for an empty folder of PyTorch. The home folder cannot be written."""
    left = [path for path in smoke.temporary.iterdir() if not path.name.startswith("torchinductor_")]
    assert left == []
    assert "Matplotlib" not in smoke.text  # which warns of it
    assert "wandb" not in smoke.text


def test_w_and_b_writes_to_the_jobs_folder_alone(tmp_path, monkeypatch):
    """Copies of texts among what it writes, in the home folder if it may. Its own settings are gone afterwards."""
    for name in [name for name in os.environ if name.startswith(("WANDB", "XDG"))]:
        monkeypatch.delenv(name)
    for name, folder in {"HOME": "home", "TMPDIR": "tmp"}.items():
        (tmp_path / folder).mkdir()
        monkeypatch.setenv(name, str(tmp_path / folder))
    (tmp_path / "job").mkdir()
    before = dict(os.environ)
    text = results.TextRow("a", "b", "c", 1, "length")
    results.write_rows(tmp_path / "job" / results.TEXTS, [text], results.TextRow)
    write_state(tmp_path / "job", JobState("x", Status.DONE))
    TrackedRun(settings=TrackingConfig(), group="g/1", folder=tmp_path / "job", name="n", kind="masked").end()
    assert dict(os.environ) == before
    assert list((tmp_path / "home").iterdir()) == list((tmp_path / "tmp").iterdir()) == []
    assert {path.name for path in (tmp_path / "job").iterdir()} == {"job.json", "wandb", results.TEXTS}
    (staged, *_) = (tmp_path / "job/wandb/artifacts/staging").iterdir()
    assert json.loads(staged.read_text())["data"] == [list(dataclasses.astuple(text))]
