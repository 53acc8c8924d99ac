"""What W&B gets: the offline runs of the smoke sweep, read back from W&B's own files; and that nobody else gets any."""

import json
import os
import struct
import subprocess
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from specbench import results, tracking
from specbench.protocols import Outcome
from specbench.protocols.base import Table
from tests.command_lines import SmokeRun, clean_environment
from tests.made_up_rows import make_row
from tests.wandb_server import wandb_server
from tests.without_network import network_of_its_own, without_network

BLOCK = 2**15
IMAGES = ("acceptance_histogram", "position_rates", "empirical_against_target")
TABLES = (results.RESULTS, results.STEPS, results.EMPIRICAL, results.TEXTS, "trace.parquet", "rounds.parquet")


def payloads(path: Path) -> Iterator[bytes]:
    """The records of a .wandb file: LevelDB's log format in blocks of 32 KiB, after a header of 7 bytes."""
    data, place, parts = path.read_bytes(), 7, []
    assert struct.unpack_from("<4sH", data) == (b":W&B", 0xBEE1)
    while place < len(data):
        if BLOCK - place % BLOCK < 7:  # too short for a header: filled with zeros
            place += BLOCK - place % BLOCK
            continue
        crc, length, kind = struct.unpack_from("<IHB", data, place)
        part = data[place + 7 : place + 7 + length]
        assert zlib.crc32(part, zlib.crc32(bytes([kind]))) == crc, f"damaged at byte {place}"
        parts.append(part)
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield b"".join(parts)
            parts = []
    assert not parts


@dataclass
class Tracked:
    """One W&B run as its file tells it."""

    files: Path
    run: Any = None
    config: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    history: dict[str, dict[str, Any]] = field(default_factory=dict)
    artifacts: list[Any] = field(default_factory=list)
    finished: bool = False


def read_run(path: Path) -> Tracked:
    from wandb.proto.wandb_internal_pb2 import Record

    tracked = Tracked(path.parent / "files")
    for payload in payloads(path):
        record = Record.FromString(payload)
        kind = record.WhichOneof("record_type")
        if kind == "run":
            tracked.run = record.run
            tracked.config = {item.key: json.loads(item.value_json) for item in record.run.config.update}
        elif kind == "summary":
            tracked.summary |= {item.key: json.loads(item.value_json) for item in record.summary.update if item.key}
        elif kind == "history":
            for item in record.history.item:
                name, *inner = item.nested_key or [item.key]
                tracked.history.setdefault(name, {})[".".join(inner)] = json.loads(item.value_json)
        elif kind == "artifact":
            tracked.artifacts.append(record.artifact)
        elif kind == "exit":
            tracked.finished = record.exit.exit_code == 0
    return tracked


@pytest.fixture(scope="module")
def tracked(smoke: SmokeRun) -> list[list[Tracked]]:
    """The W&B runs of each job."""
    jobs = sorted(path for path in smoke.sweep.iterdir() if path.name.isdigit())
    return [[read_run(path) for path in sorted(job.glob("wandb/offline-run-*/*.wandb"))] for job in jobs]


def test_one_finished_run_a_job_and_one_group_a_sweep(smoke, tracked):
    assert [len(runs) for runs in tracked] == [1] * 4
    runs = [run for (run,) in tracked]
    assert all(run.finished for run in runs)
    assert {run.run.run_group for run in runs} == {f"smoke/{smoke.sweep.resolve().name}"}
    assert len({run.run.run_id for run in runs}) == 4
    assert {run.run.project for run in runs} == {"specbench"}


def test_config_and_name_say_what_varied(smoke, tracked):
    for (run,), row in zip(tracked, results.read_results(smoke.sweep).itertuples(), strict=True):
        assert run.config["gamma"] == row.gamma
        assert run.config["verifier"]["_target_"].lower().endswith(f"{row.verifier}verifier")
        assert run.config["workload"]["limit"] == 4
        assert run.run.display_name == f"gamma={row.gamma},verifier={row.verifier}"
        assert run.run.job_type == row.verifier


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
        assert table["data"] == texts[texts["job"] == job][table["columns"]].to_numpy().tolist()


def test_the_parquet_files_are_an_artifact(smoke, tracked):
    """The manifest leads to the job's own files: no copy of them is made."""
    for job, (run,) in enumerate(tracked):
        folder = (smoke.sweep / str(job)).resolve()
        (artifact,) = [a for a in run.artifacts if a.type == "results"]
        held = {entry.path: entry for entry in artifact.manifest.contents}
        assert {name: Path(entry.local_path) for name, entry in held.items()} == {n: folder / n for n in TABLES}
        assert {entry.size for entry in held.values()} == {(folder / name).stat().st_size for name in held}


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
    text = {"prompt": "a", "text": "b", "completion": "c", "tokens": 1, "finished": "length"}
    outcome = Outcome("headline", tables={results.TEXTS: Table([text], results.TEXT_SCHEMA)})
    settings = {"project": "p", "entity": None, "group": "g/1", "name": "n", "config": {}, "texts": 8}
    tracking.log_run("offline", **settings, folder=tmp_path / "job", row=vars(make_row()), outcome=outcome)
    assert dict(os.environ) == before
    assert list((tmp_path / "home").iterdir()) == list((tmp_path / "tmp").iterdir()) == []
    assert [path.name for path in (tmp_path / "job").iterdir()] == ["wandb"]
    (staged, *_) = (tmp_path / "job/wandb/artifacts/staging").iterdir()
    assert json.loads(staged.read_text())["data"] == [["a", "b", "c", 1, "length"]]


def test_wandb_sync_finds_all_that_it_sends(smoke, tracked, tmp_path):
    """A run as it was left, sent to a server on this machine: figures, the table of texts, the summary, every file."""
    job, ((run,), *_) = smoke.sweep / "0", tracked
    with wandb_server() as server:
        command = [sys.executable, "-m", "wandb", "sync", str(run.files.parent)]
        environment = clean_environment(tmp_path) | {"WANDB_BASE_URL": server.url, "WANDB_API_KEY": "k" * 40}
        environment |= {"WANDB_ERROR_REPORTING": "false"}
        subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, check=True)
    for name in TABLES:
        assert server.uploads[f"/artifact/{name}"] == (job / name).read_bytes()
    for name in IMAGES:
        assert server.uploads[f"/run/{run.history[name]['path']}"] == (job / f"{name}.png").read_bytes()
    texts = json.loads(server.uploads["/artifact/texts.table.json"])
    assert len(texts["data"]) == 4
    assert json.loads(server.uploads["/run/wandb-summary.json"])["gamma"] == 1
    assert server.asked.count("CommitArtifact") == 2


def test_the_reader_notices_damage(smoke, tracked, tmp_path):
    path = next(smoke.sweep.glob("0/wandb/offline-run-*/*.wandb"))
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    (tmp_path / "run.wandb").write_bytes(damaged)
    with pytest.raises((AssertionError, struct.error)):
        list(payloads(tmp_path / "run.wandb"))
