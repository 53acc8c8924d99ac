"""What W&B gets: the offline runs of the smoke sweep, read back from W&B's own files."""

import json
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from specbench import results
from tests.command_lines import SmokeRun

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
    """W&B's staged copies hold the very bytes of the job's files, whose digests stand in the manifest."""
    for job, (run,) in enumerate(tracked):
        (artifact,) = [a for a in run.artifacts if a.type == "results"]
        held = {entry.path: entry for entry in artifact.manifest.contents}
        assert set(held) == set(TABLES)
        for name, entry in held.items():
            content = (smoke.sweep / str(job) / name).read_bytes()
            assert Path(entry.local_path).read_bytes() == content
            assert entry.size == len(content)


def test_the_reader_notices_damage(smoke, tracked, tmp_path):
    path = next(smoke.sweep.glob("0/wandb/offline-run-*/*.wandb"))
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    (tmp_path / "run.wandb").write_bytes(damaged)
    with pytest.raises((AssertionError, struct.error)):
        list(payloads(tmp_path / "run.wandb"))
